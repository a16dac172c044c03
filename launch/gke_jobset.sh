#!/usr/bin/env bash
# Runs specjax-generate on a TPU slice in GKE, as a JobSet.
#
# Usage: launch/gke_jobset.sh COMMAND NAME [OPTIONS] [-- FLAGS]
#
#   run      fills in launch/gke_jobset.yaml and applies it; with --output among
#            FLAGS it goes on with --resume, also when a host is restarted
#   logs     shows a worker's log
#   delete   deletes the JobSet and its pods
#
# Each is safe to run again: a JobSet of that name with the same FLAGS stays as
# it is. For others delete it first, or take another NAME.
#
# Options:
#   --image=IMAGE             run: a container image with specjax-generate in it
#   --accelerator=NAME        run: tpu-v4-podslice, tpu-v5-lite-podslice,
#                             tpu-v5p-slice, tpu-v6e-slice
#   --topology=TOPOLOGY       run: of the slice, 2x2x4 or 4x4
#   --chips_per_host=N        run: of a node of the pool (4)
#   --spot                    run: on spot nodes
#   --restarts=N              run: how often to begin again (10)
#   --service_account=NAME    run: who may read the bucket (default)
#   --token_secret=NAME       run: the Secret whose key "token" is HF_TOKEN; may
#                             be absent (hf-token)
#   --worker=N                logs: which worker (0)
#   --follow                  logs: go on as it grows
#   --namespace=NAMESPACE     (default)
#   --dry_run                 run: prints the manifest, applies nothing;
#                             else prints the command
#
# Example:
#   launch/gke_jobset.sh run answers --image=IMAGE --topology=4x4 \
#     --accelerator=tpu-v5-lite-podslice -- --config=configs/qwen3_32b.py \
#     --prompts=gs://bucket/prompts.jsonl --output=gs://bucket/answers.jsonl
#   launch/gke_jobset.sh logs answers --follow
#   launch/gke_jobset.sh delete answers
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=launch/common.sh
source "$here/common.sh"

all="run logs delete"
takes=(
  [namespace]=$all [dry_run]=$all
  [image]=run [accelerator]=run [topology]=run [chips_per_host]=run [spot]=run
  [restarts]=run [service_account]=run [token_secret]=run
  [worker]=logs [follow]=logs
)
switches="spot follow dry_run"
parse "$all" "$@"
namespace=${options[namespace]-default}

# fits OPTION VALUE PATTERN: refuses what would be another thing in YAML.
fits() {
  [[ $2 =~ ^$3$ ]] || die "--$1=$2: malformed"
}

# Words as a JSON array, which is YAML too. Kubernetes reads $(NAME) in them,
# and $$ as one $.
json() {
  local word out="" cntrl=$'[\x01-\x08\x0b\x0c\x0e-\x1f]'
  for word in "$@"; do
    [[ ! $word =~ $cntrl ]] || die "a flag holds a control character"
    word=${word//\\/\\\\}
    word=${word//\"/\\\"}
    word=${word//$'\n'/\\n}
    word=${word//$'\r'/\\r}
    word=${word//$'\t'/\\t}
    word=${word//\$/\$\$}
    out+=", \"$word\""
  done
  printf '[%s]' "${out#, }"
}

manifest() {
  local text key topology=${options[topology]} chips=1 side
  local per_host=${options[chips_per_host]-4}
  local dns='[a-z0-9]([-a-z0-9]*[a-z0-9])?'
  fits image "${options[image]}" '[A-Za-z0-9][A-Za-z0-9._/:@-]*'
  fits accelerator "${options[accelerator]}" "$dns"
  fits topology "$topology" '[1-9][0-9]*x[1-9][0-9]*(x[1-9][0-9]*)?'
  fits chips_per_host "$per_host" '[1-9][0-9]*'
  fits restarts "${options[restarts]-10}" '[0-9]+'
  fits service_account "${options[service_account]-default}" "$dns"
  fits token_secret "${options[token_secret]-hf-token}" "$dns"
  for side in ${topology//x/ }; do
    chips=$((chips * side))
  done
  # A slice within one host has fewer chips than the host may have.
  ((chips > per_host)) || per_host=$chips
  ((chips % per_host == 0)) ||
    die "--topology=$topology has $chips chips, no multiple of" \
      "--chips_per_host=$per_host"
  local -A values=(
    [NAME]=$name [NAMESPACE]=$namespace
    [IMAGE]=${options[image]} [ACCELERATOR]=${options[accelerator]}
    [TOPOLOGY]=$topology [HOSTS]=$((chips / per_host)) [CHIPS]=$per_host
    [RESTARTS]=${options[restarts]-10}
    [SERVICE_ACCOUNT]=${options[service_account]-default}
    [TOKEN_SECRET]=${options[token_secret]-hf-token}
  )
  if [[ -n ${options[spot]-} ]]; then
    text=$(sed 's/ # spot$//' "$here/gke_jobset.yaml")
  else
    text=$(sed '/# spot$/d' "$here/gke_jobset.yaml")
  fi
  for key in "${!values[@]}"; do
    text=${text//__${key}__/${values[$key]}}
  done
  # Last, and once: nothing in a flag is a word to fill in.
  key=$(json "${flags[@]}")
  printf '%s%s%s\n' "${text%%__ARGS__*}" "$key" "${text#*__ARGS__}"
}

run() {
  local filled
  need image "a container image with specjax-generate in it"
  need accelerator "the node pool's, such as tpu-v5-lite-podslice"
  need topology "the slice's, such as 4x4"
  ((${#flags[@]})) || die "run needs flags of specjax-generate, after --"
  resuming
  filled=$(manifest)
  if [[ -n ${options[dry_run]-} ]]; then
    printf '%s\n' "$filled"
  else
    printf '%s\n' "$filled" | act kubectl apply -f -
  fi
}

logs() {
  local worker=${options[worker]-0}
  fits worker "$worker" '[0-9]+'
  local pods="jobset.sigs.k8s.io/jobset-name=$name"
  pods+=",batch.kubernetes.io/job-completion-index=$worker"
  act kubectl logs "--namespace=$namespace" "--selector=$pods" --tail=200 \
    ${options[follow]:+--follow}
}

fits namespace "$namespace" '[a-z0-9]([-a-z0-9]*[a-z0-9])?'
[[ $command == run || ${#flags[@]} -eq 0 ]] ||
  die "flags after -- are for run; $command takes none"
case $command in
  run) run ;;
  logs) logs ;;
  delete)
    act kubectl delete jobset "$name" "--namespace=$namespace" \
      --ignore-not-found
    ;;
esac
