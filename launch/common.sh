# shellcheck shell=bash
# What the launchers share; they source it. Not a program of its own.
#
# A launcher declares what each of its options is good for:
#   takes     option -> the commands that heed it; all others refuse it
#   switches  options without a value
#   repeats   options that may be given several times
# and gets after `parse "$@"`: command, name, options, lists and flags.

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "$0: needs bash 4.4 or newer; this is $BASH_VERSION" >&2
  exit 2
fi

shopt -s inherit_errexit # an error within $(…) is an error

declare -A takes=()
switches="" repeats=""

declare -A options=() # option -> its value
declare -A lists=()   # option -> its values, each ended by a newline
flags=()              # what stands after --
command="" name=""

die() {
  echo "$(basename "$0"): error: $*" >&2
  exit 2
}

# The comment on top of the launcher.
usage() {
  sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$0"
}

# parse COMMANDS ARGUMENTS...: reads a command line.
parse() {
  local commands=" $1 " argument key value
  shift
  for argument in "$@"; do
    case $argument in
      --) break ;;
      --help | -h)
        usage
        exit 0
        ;;
    esac
  done
  (($#)) || die "no command; give one of$commands(--help says more)"
  command=$1
  [[ $commands == *" $command "* ]] ||
    die "unknown command '$command'; give one of$commands(--help says more)"
  shift
  [[ ${1-} =~ ^[a-z]([-a-z0-9]{0,40}[a-z0-9])?$ ]] ||
    die "'${1-}' is no name; give small letters, digits and - after $command"
  name=$1
  shift
  while (($#)); do
    argument=$1
    shift
    if [[ $argument == -- ]]; then
      flags=("$@")
      break
    fi
    [[ $argument == --* ]] ||
      die "'$argument' is no option; flags of specjax-generate go after --"
    key=${argument#--} value=""
    if [[ $key == *=* ]]; then
      value=${key#*=} key=${key%%=*}
    fi
    [[ -n ${takes[$key]-} ]] || die "unknown option --$key; see --help"
    [[ " ${takes[$key]} " == *" $command "* ]] ||
      die "--$key does nothing with $command; leave it out"
    if [[ " $switches " == *" $key "* ]]; then
      [[ $argument != *=* ]] || die "--$key takes no value"
      value=yes
    elif [[ -z $value ]]; then
      die "--$key needs a value: --$key=VALUE"
    fi
    if [[ " $repeats " == *" $key "* ]]; then
      lists[$key]+=$value$'\n'
    else
      options[$key]=$value
    fi
  done
}

# need OPTION WHAT: refuses to go on without an option.
need() {
  [[ -n ${options[$1]-} ]] || die "--$1 is missing; name $2"
}

# Words as a shell would read them back.
quoted() {
  local word out=""
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=@%+,-]+$ ]] || word=${word@Q}
    out+=" $word"
  done
  printf '%s\n' "${out# }"
}

# Runs a command, or with --dry_run prints it.
act() {
  if [[ -n ${options[dry_run]-} ]]; then
    quoted "$@"
  else
    command -v "$1" >/dev/null || die "$1 is not on PATH; install it first"
    "$@"
  fi
}

# state_of COMMAND...: what a describe prints; nothing where there is nothing.
state_of() {
  local out errors
  errors=$(mktemp)
  if out=$("$@" 2>"$errors"); then
    rm -f "$errors"
    printf '%s\n' "$out"
    return
  fi
  if grep -qiE 'NOT_FOUND|not found' "$errors"; then
    rm -f "$errors"
    return
  fi
  cat "$errors" >&2
  rm -f "$errors"
  die "cannot look at $name; see the lines above"
}

# flags, and --resume where they name an output and do not speak of it: a run
# that was ended, or preempted, goes on when it is started again.
resuming() {
  local flag has_output="" speaks=""
  for flag in "${flags[@]}"; do
    case $flag in
      --output | --output=* | -output | -output=*) has_output=yes ;;
      --resume* | --noresume | --overwrite* | -resume* | -overwrite*)
        speaks=yes
        ;;
    esac
  done
  if [[ -n $has_output && -z $speaks ]]; then
    flags+=(--resume)
  fi
}

# The image whose drivers fit an accelerator type.
image_for() {
  case $1 in
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) die "--type=$1: no image is known for it; give --version" ;;
  esac
}
