#!/usr/bin/env bash
# Runs specjax-generate on a TPU VM slice of v4, v5e, v5p or v6e chips.
#
# Usage: launch/tpu_vm.sh COMMAND NAME --zone=ZONE [OPTIONS] [-- FLAGS]
#
#   create   makes the slice; one that is there stays, one that was preempted is
#            made anew
#   setup    copies what git does not ignore of this working tree to every worker
#            (or clones --repo) and installs it, with a Python of at least 3.11
#   run      starts specjax-generate FLAGS on every worker, in the background;
#            with --output among FLAGS it goes on with --resume
#   logs     shows the end of a worker's log
#   stop     ends the run on every worker
#   delete   deletes the slice
#
# Each is safe to run again.
#
# Options:
#   --zone=ZONE         where the slice is
#   --project=PROJECT   gcloud's own if not given
#   --type=TYPE         create: v4-32, v5litepod-16, v5p-32, v6e-16, …
#   --version=VERSION   create: the image; the one for TYPE if not given
#   --spot              create: cheaper, may be preempted
#   --create_flag=FLAG  create: handed to gcloud; may be given several times
#   --repo=URL          setup: clone this instead of copying
#   --ref=REF           setup: of --repo; its HEAD if not given
#   --python=VERSION    setup: fetched where there is none of 3.11 or newer (3.12)
#   --worker=N          logs: which worker (0)
#   --follow            logs: go on as it grows
#   --dry_run           prints the commands, runs none
#
# A token for gated models: setup copies $HF_TOKEN, where it is set, into a file
# on the workers that only you can read. It is on no command line and in no log.
#
# Example:
#   launch/tpu_vm.sh create pod --zone=us-central2-b --type=v4-32 --spot
#   launch/tpu_vm.sh setup pod --zone=us-central2-b
#   launch/tpu_vm.sh run pod --zone=us-central2-b -- \
#     --config=configs/llama2_70b.py --model=gs://bucket/llama2_70b \
#     --draft_model=gs://bucket/llama2_7b --prompts=gs://bucket/prompts.jsonl \
#     --output=gs://bucket/answers.jsonl
#   launch/tpu_vm.sh logs pod --zone=us-central2-b --follow
#   launch/tpu_vm.sh delete pod --zone=us-central2-b
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=launch/common.sh
source "$here/common.sh"

all="create setup run logs stop delete"
takes=(
  [zone]=$all [project]=$all [dry_run]=$all
  [type]=create [version]=create [spot]=create [create_flag]=create
  [repo]=setup [ref]=setup [python]=setup
  [worker]=logs [follow]=logs
)
switches="spot follow dry_run"
repeats="create_flag"
parse "$all" "$@"
need zone "where the slice is"
if [[ $command == run ]]; then
  ((${#flags[@]})) || die "run needs flags of specjax-generate, after --"
elif ((${#flags[@]})); then
  die "flags after -- are for run; $command takes none"
fi

where=("--zone=${options[zone]}")
if [[ -n ${options[project]-} ]]; then
  where+=("--project=${options[project]}")
fi

tpus() {
  local verb=$1
  shift
  act gcloud compute tpus tpu-vm "$verb" "$@" "${where[@]}"
}

# on WORKER COMMAND...: runs it there, words kept apart.
on() {
  local worker=$1
  shift
  tpus ssh "$name" "--worker=$worker" "--command=$(quoted "$@")"
}

state() {
  state_of tpus describe "$name" "--format=value(state)"
}

create() {
  need type "the slice, such as v4-32 or v5litepod-16"
  local version was="" extra=()
  version=${options[version]-}
  [[ -n $version ]] || version=$(image_for "${options[type]}")
  if [[ -n ${options[spot]-} ]]; then
    extra+=(--spot)
  fi
  if [[ -n ${lists[create_flag]-} ]]; then
    mapfile -t -O "${#extra[@]}" extra <<<"${lists[create_flag]%$'\n'}"
  fi
  if [[ -z ${options[dry_run]-} ]]; then
    was=$(state)
  fi
  case $was in
    "") ;;
    READY)
      echo "$name is there and ready"
      return
      ;;
    STOPPED)
      tpus start "$name"
      return
      ;;
    PREEMPTED | TERMINATED)
      echo "$name is $was: it is made anew"
      tpus delete "$name" --quiet
      ;;
    *) die "$name is $was; wait, or delete it" ;;
  esac
  tpus create "$name" "--accelerator-type=${options[type]}" \
    "--version=$version" "${extra[@]}"
}

# The files of the working tree that git does not ignore, as they are now.
pack() {
  local tree=$1 file=$2 path
  git -C "$tree" ls-files -z -co --exclude-standard |
    while IFS= read -r -d '' path; do
      if [[ -e $tree/$path || -L $tree/$path ]]; then
        printf '%s\0' "$path"
      fi
    done |
    sort -z -u | tar -C "$tree" --null -T - -czf "$file"
}

setup() {
  local stage files python=${options[python]-3.12} from=()
  [[ $python =~ ^3\.1[1-9]$ ]] ||
    die "--python=$python: give a version from 3.11 on"
  stage=$(mktemp -d)
  # shellcheck disable=SC2064  # Now: the name is gone by then.
  trap "rm -rf '$stage'" EXIT
  files=("$here/worker.sh")
  if [[ -n ${options[repo]-} ]]; then
    from=("${options[repo]}" "${options[ref]-HEAD}")
  else
    [[ -z ${options[ref]-} ]] || die "--ref does nothing without --repo"
    git -C "$here/.." rev-parse --is-inside-work-tree >/dev/null 2>&1 ||
      die "$here is in no git working tree to copy; name one to clone: --repo"
    files+=("$stage/source.tar.gz")
    if [[ -z ${options[dry_run]-} ]]; then
      pack "$(git -C "$here/.." rev-parse --show-toplevel)" "${files[-1]}"
    fi
  fi
  if [[ -n ${HF_TOKEN-} ]]; then
    files+=("$stage/hf_token")
    if [[ -z ${options[dry_run]-} ]]; then
      (umask 077 && printf '%s' "$HF_TOKEN" >"${files[-1]}")
    fi
  fi
  on all mkdir -p -m 700 .specjax
  tpus scp "${files[@]}" "$name:.specjax/" --worker=all
  if [[ -n ${HF_TOKEN-} ]]; then
    on all chmod 600 .specjax/hf_token
  fi
  on all bash .specjax/worker.sh setup "$python" "${from[@]}"
}

delete() {
  local was=dry
  if [[ -z ${options[dry_run]-} ]]; then
    was=$(state)
  fi
  if [[ -z $was ]]; then
    echo "$name is not there"
  else
    tpus delete "$name" --quiet
  fi
}

case $command in
  create) create ;;
  setup) setup ;;
  run)
    resuming
    on all bash .specjax/worker.sh run "${flags[@]}"
    ;;
  logs)
    [[ ${options[worker]-0} =~ ^[0-9]+$ ]] ||
      die "--worker=${options[worker]}: give a number"
    on "${options[worker]-0}" bash .specjax/worker.sh logs \
      ${options[follow]:+--follow}
    ;;
  stop) on all bash .specjax/worker.sh stop ;;
  delete) delete ;;
esac
