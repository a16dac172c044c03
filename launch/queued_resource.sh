#!/usr/bin/env bash
# Runs specjax-generate on a TPU VM slice that is asked for in a queue.
#
# Usage: launch/queued_resource.sh COMMAND NAME --zone=ZONE [OPTIONS] [-- FLAGS]
#
#   create   asks for the slice; a request that is there stays, one that failed
#            or whose slice was preempted is made anew
#   wait     waits until the slice is there
#   setup, run, logs, stop
#            as in launch/tpu_vm.sh, which they call: see its --help
#   delete   deletes the request and its slice
#
# Each is safe to run again. The request and its slice are both called NAME.
#
# Options:
#   --zone=ZONE         where the slice is
#   --project=PROJECT   gcloud's own if not given
#   --type=TYPE         create: v4-32, v5litepod-16, v5p-32, v6e-16, …
#   --version=VERSION   create: the image; the one for TYPE if not given
#   --spot              create: cheaper, may be preempted
#   --valid_for=TIME    create: give up after, such as 6h; never if not given
#   --create_flag=FLAG  create: handed to gcloud; may be given several times
#   --every=SECONDS     wait: how often to look (30)
#   --dry_run           prints the commands, runs none
#
# Example:
#   launch/queued_resource.sh create pod --zone=us-east5-a --type=v5p-32 --spot
#   launch/queued_resource.sh wait pod --zone=us-east5-a
#   launch/queued_resource.sh setup pod --zone=us-east5-a
#   launch/queued_resource.sh run pod --zone=us-east5-a -- \
#     --config=configs/llama3_70b.py --prompts=gs://bucket/prompts.jsonl \
#     --output=gs://bucket/answers.jsonl
#   launch/queued_resource.sh delete pod --zone=us-east5-a
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=launch/common.sh
source "$here/common.sh"

case ${1-} in
  setup | run | logs | stop) exec "$here/tpu_vm.sh" "$@" ;;
esac
all="create wait delete"
takes=(
  [zone]=$all [project]=$all [dry_run]=$all
  [type]=create [version]=create [spot]=create [create_flag]=create
  [valid_for]=create [every]=wait
)
switches="spot dry_run"
repeats="create_flag"
parse "$all setup run logs stop" "$@"
need zone "where the slice is"
((${#flags[@]} == 0)) || die "flags after -- are for run; $command takes none"

where=("--zone=${options[zone]}")
if [[ -n ${options[project]-} ]]; then
  where+=("--project=${options[project]}")
fi

queue() {
  local verb=$1
  shift
  act gcloud compute tpus queued-resources "$verb" "$@" "${where[@]}"
}

state() {
  state_of queue describe "$name" "--format=value(state.state)"
}

create() {
  need type "the slice, such as v4-32 or v5litepod-16"
  local version was="" extra=()
  version=${options[version]-}
  [[ -n $version ]] || version=$(image_for "${options[type]}")
  if [[ -n ${options[spot]-} ]]; then
    extra+=(--spot)
  fi
  if [[ -n ${options[valid_for]-} ]]; then
    extra+=("--valid-until-duration=${options[valid_for]}")
  fi
  if [[ -n ${lists[create_flag]-} ]]; then
    mapfile -t -O "${#extra[@]}" extra <<<"${lists[create_flag]%$'\n'}"
  fi
  if [[ -z ${options[dry_run]-} ]]; then
    was=$(state)
  fi
  case $was in
    "") ;;
    FAILED | SUSPENDED)
      echo "$name is $was: it is made anew"
      queue delete "$name" --force --quiet
      ;;
    *)
      echo "$name is there: $was"
      return
      ;;
  esac
  queue create "$name" "--node-id=$name" \
    "--accelerator-type=${options[type]}" "--runtime-version=$version" \
    "${extra[@]}"
}

wait_for() {
  local every=${options[every]-30} now before=""
  [[ $every =~ ^[0-9]+$ ]] || die "--every=$every: give seconds"
  if [[ -n ${options[dry_run]-} ]]; then
    queue describe "$name" "--format=value(state.state)"
    return
  fi
  while true; do
    now=$(state)
    if [[ $now != "$before" ]]; then
      echo "$name: ${now:-not there}"
      before=$now
    fi
    case $now in
      ACTIVE) return ;;
      "" | FAILED | SUSPENDING | SUSPENDED)
        die "$name will not come; create it again"
        ;;
    esac
    sleep "$every"
  done
}

delete() {
  local was=dry
  if [[ -z ${options[dry_run]-} ]]; then
    was=$(state)
  fi
  if [[ -z $was ]]; then
    echo "$name is not there"
  else
    queue delete "$name" --force --quiet
  fi
}

case $command in
  create) create ;;
  wait) wait_for ;;
  delete) delete ;;
esac
