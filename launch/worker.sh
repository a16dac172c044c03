#!/usr/bin/env bash
# What launch/tpu_vm.sh does on each worker, which it copies this file to.
#
# Usage: worker.sh setup VERSION [REPO REF] | run FLAGS... | logs [--follow] | stop
#
#   setup  installs into ~/.specjax: from source.tar.gz there, or a clone of REPO
#          at REF; with a Python of at least 3.11, VERSION where none is there
#   run    starts specjax-generate FLAGS in ~/.specjax/run, in the background
#   logs   shows the end of its log
#   stop   ends it, by force after 20 seconds
set -euo pipefail

root=$HOME/.specjax
venv=$root/venv
log=$root/run.log
pidfile=$root/run.pid

say() {
  echo "$(hostname): $*"
}

# Whether a Python is new enough and can make environments.
fits() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
    2>/dev/null
}

make_venv() {
  local python
  if [[ -x $venv/bin/python ]] && fits "$venv/bin/python"; then
    return
  fi
  rm -rf "$venv"
  for python in "python$1" python3.13 python3.12 python3.11 python3; do
    if command -v "$python" >/dev/null && fits "$python"; then
      "$python" -m venv "$venv"
      return
    fi
  done
  # The images have Python 3.10. uv brings another without touching theirs.
  if ! python3 -m pip --version >/dev/null 2>&1; then
    sudo apt-get -o DPkg::Lock::Timeout=300 update -qq
    sudo apt-get -o DPkg::Lock::Timeout=300 install -y -qq python3-pip
  fi
  python3 -m pip install --user -q uv
  python3 -m uv venv --seed -q --python "$1" "$venv"
}

# The source as it was sent, whole: files that are no more are gone here too.
unpack() {
  rm -rf "$root/source.partial"
  mkdir "$root/source.partial"
  tar -xzf "$root/source.tar.gz" -C "$root/source.partial"
  rm -rf "$root/source"
  mv "$root/source.partial" "$root/source"
}

clone() {
  if [[ ! -d $root/source/.git ]]; then
    rm -rf "$root/source"
    git clone -q --no-checkout -- "$1" "$root/source"
  fi
  git -C "$root/source" remote set-url origin "$1"
  git -C "$root/source" fetch -q origin "$2"
  git -C "$root/source" checkout -q --force --detach FETCH_HEAD
}

setup() {
  mkdir -p "$root"
  chmod 700 "$root"
  if (($# > 1)); then
    clone "$2" "$3"
  else
    unpack
  fi
  make_venv "$1"
  "$venv/bin/python" -m pip install -q -e "$root/source[tpu,gcs]"
  "$venv/bin/specjax-generate" --help >/dev/null
  say "specjax is installed in $venv"
}

# The process that runs, or nothing. Its number may be another's by now.
running() {
  local pid
  [[ -f $pidfile ]] || return 0
  pid=$(<"$pidfile")
  if [[ $pid =~ ^[0-9]+$ ]] &&
    grep -qa specjax-generate "/proc/$pid/cmdline" 2>/dev/null; then
    echo "$pid"
  fi
}

run() {
  local pid
  pid=$(running)
  if [[ -n $pid ]]; then
    say "specjax-generate runs already, as process $pid; stop it first"
    return
  fi
  [[ -x $venv/bin/specjax-generate ]] || {
    say "specjax is not installed; run setup first" >&2
    exit 1
  }
  # Not in the source, which the next setup replaces.
  mkdir -p "$root/run"
  cd "$root/run"
  ln -sfn ../source/configs configs
  ln -sfn ../source/demo demo
  if [[ -f $root/hf_token ]]; then
    HF_TOKEN=$(<"$root/hf_token")
    export HF_TOKEN
  fi
  {
    date
    printf '%q ' specjax-generate "$@"
    echo
  } >>"$log"
  # shellcheck disable=SC2016  # The inner shell is the one to expand these.
  nohup setsid bash -c '"$@"; echo "specjax-generate: exit code $?"' \
    run "$venv/bin/specjax-generate" "$@" >>"$log" 2>&1 </dev/null &
  echo $! >"$pidfile"
  say "specjax-generate started as process $!"
}

logs() {
  [[ -f $log ]] || {
    say "nothing has run here yet" >&2
    exit 1
  }
  if [[ ${1-} == --follow ]]; then
    exec tail -n 200 -F "$log"
  fi
  tail -n 200 "$log"
}

# jax.distributed catches SIGTERM, so it may take more than that.
stop() {
  local pid
  pid=$(running)
  if [[ -z $pid ]]; then
    say "nothing runs"
    return
  fi
  kill -TERM -- "-$pid" 2>/dev/null || true
  for _ in {1..80}; do
    [[ -n $(running) ]] || break
    sleep 0.25
  done
  kill -KILL -- "-$pid" 2>/dev/null || true
  rm -f "$pidfile"
  say "process $pid has ended"
}

case ${1-} in
  setup | run | logs | stop) "$@" ;;
  *)
    sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$0"
    exit 2
    ;;
esac
