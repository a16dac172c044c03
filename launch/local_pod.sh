#!/usr/bin/env bash
# The rehearsal of a pod: N processes of M simulated devices on this machine.
#
#   launch/local_pod.sh [--dry_run] N M [specjax-generate flags…]
#
#   launch/local_pod.sh 2 4 --model=FOLDER --mesh=model:8 \
#     --prompts=in.jsonl --output=out.jsonl --resume
#
# Runs specjax-generate N times, as the workers of a slice would, and tells each
# where process 0 is. What process 0 says is shown, its standard error behind
# "[0] "; all of them write logs. When one ends badly the others end by
# themselves, or are killed after GRACE_S seconds. Ctrl-C and SIGTERM go to all.
#
#   --dry_run       only prints the commands
#   PYTHON=…        the interpreter (.venv/bin/python if there is one)
#   LOG_DIR=…       where logs go (a new folder under ${TMPDIR:-/tmp})
#   GRACE_S=60      seconds
#
# Exit code: that of process 0; where it is 0 and another's is not, 1.
# Any number of pods run side by side: each has a port and a log folder.

set -euo pipefail

usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

fail() {
  echo "local_pod.sh: $1" >&2
  exit 2
}

dry_run=
if [[ "${1:-}" == --dry_run ]]; then
  dry_run=1
  shift
fi
if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
  usage
  exit 0
fi
for number in "${1:-}" "${2:-}"; do
  [[ "$number" =~ ^[1-9][0-9]{0,3}$ ]] ||
    fail "'$number' is no count; usage: local_pod.sh [--dry_run] N M [flags…]"
done
count=$1 devices=$2
shift 2

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-}
if [[ -z "$python" ]]; then
  python=python3
  [[ -x "$here/.venv/bin/python" ]] && python=$here/.venv/bin/python
fi
grace_s=${GRACE_S:-60}
port=8476
if [[ -z "$dry_run" ]]; then
  port=$("$python" -c 'import socket
with socket.socket() as s:
  s.bind(("127.0.0.1", 0))
  print(s.getsockname()[1])')
fi

export JAX_PLATFORMS=cpu
# With more devices than cores a thread may be late for a collective.
export XLA_FLAGS="${XLA_FLAGS:-} \
--xla_force_host_platform_device_count=$devices \
--xla_cpu_collective_call_terminate_timeout_seconds=600"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"

command_of() {
  command=("$python" -m specjax.cli.generate "$@"
    "--coordinator_address=127.0.0.1:$port" "--num_processes=$count"
    "--process_id=$process")
}

if [[ -n "$dry_run" ]]; then
  echo "export JAX_PLATFORMS=$JAX_PLATFORMS"
  echo "export XLA_FLAGS=${XLA_FLAGS@Q}"
  echo "export PYTHONPATH=${PYTHONPATH@Q}"
  for ((process = 0; process < count; process++)); do
    command_of "$@"
    echo "${command[*]@Q} &"
  done
  echo wait
  exit 0
fi

logs=${LOG_DIR:-}
if [[ -z "$logs" ]]; then
  logs=$(mktemp -d "${TMPDIR:-/tmp}/specjax-pod.XXXXXX")
fi
mkdir -p "$logs"
echo "logs: $logs/process-*.log" >&2

pids=()
codes=() # Of each process its exit code, once it has one.
signal_all() {
  local process
  for process in "${!pids[@]}"; do
    [[ -n "${codes[process]:-}" ]] || kill "-$1" "${pids[process]}" 2>/dev/null || true
  done
}
trap 'signal_all INT' INT
trap 'signal_all TERM' TERM
trap 'signal_all KILL' EXIT

set -m # A group of its own for each: Ctrl-C reaches it through the trap alone.
for ((process = 0; process < count; process++)); do
  command_of "$@"
  log=$logs/process-$process.log
  if ((process == 0)); then
    "${command[@]}" </dev/null 2> >(tee "$log" | sed -u 's/^/[0] /' >&2) &
  else
    "${command[@]}" </dev/null >"$log" 2>&1 &
  fi
  pids[process]=$!
done
set +m

bad=
deadline=
while ((${#codes[@]} < count)); do
  for process in "${!pids[@]}"; do
    if [[ -n "${codes[process]:-}" ]] || kill -0 "${pids[process]}" 2>/dev/null; then
      continue
    fi
    code=0
    wait "${pids[process]}" || code=$?
    codes[process]=$code
    if ((code != 0)) && [[ -z "$bad" ]]; then
      bad=$process
      deadline=$((SECONDS + grace_s))
      ((process == 0)) || echo "process $process ended with exit code $code" >&2
    fi
  done
  if [[ -n "$deadline" ]] && ((SECONDS >= deadline)); then
    echo "still running after $grace_s s: killed" >&2
    signal_all KILL
    deadline=$((SECONDS + grace_s))
  fi
  sleep 0.2 || true
done

if [[ -n "$bad" ]] && ((bad != 0)); then
  echo "the end of $logs/process-$bad.log:" >&2
  tail -n 3 "$logs/process-$bad.log" >&2
fi
if ((codes[0] == 0)) && [[ -n "$bad" ]]; then
  exit 1
fi
exit "${codes[0]}"
