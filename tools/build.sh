#!/usr/bin/env bash
# Configures a build folder when that is needed and builds targets in it; run.sh, test.sh and
# .ci/run share it. Nothing is done where nothing changed; all output goes to standard error. What
# is not given with -D stays as the folder was configured before.
#
# usage: tools/build.sh FOLDER [-DNAME=VALUE]... [TARGET]...     (no target: everything)
#        tools/build.sh FOLDER [-DNAME=VALUE]... --configure     (build nothing)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root

folder=$1
shift
definitions=() targets=() configure_only=false
for argument in "$@"; do
  case "$argument" in
    -D*) definitions+=("$argument") ;;
    --configure) configure_only=true ;;
    *) targets+=("$argument") ;;
  esac
done

# Let ccache recognize a file that was compiled in another checkout.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1

if rust=$("$root/tools/setup.sh" --rust-bin); then PATH="$rust:$PATH"; fi

# A folder that was configured for another place or another generator cannot be reused.
cache="$folder/CMakeCache.txt"
if [[ -f $cache ]]; then
  if ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache" ||
    ! grep -qxF "CMAKE_GENERATOR:INTERNAL=Ninja" "$cache"; then
    rm -rf "$cache" "$folder/CMakeFiles"
  fi
fi

is_configured() {
  local definition
  [[ -f $folder/build.ninja && -f $cache ]] || return 1
  for definition in "$@"; do
    definition=${definition#-D}
    grep -q -- "^${definition%%=*}:[A-Z]*=${definition#*=}\$" "$cache" || return 1
  done
}

# Once configured, CMake runs again by itself when a CMake file or the list of sources changed.
if ! is_configured ${definitions[0]:+"${definitions[@]}"}; then
  cmake -S "$root" -B "$folder" -G Ninja ${definitions[0]:+"${definitions[@]}"} >&2
fi

if $configure_only; then
  cmake --build "$folder" --target build.ninja >&2
  exit
fi

# Leave each compiler 1.5 GB of memory: the server's templates need it.
jobs=$(nproc)
memory_jobs=$(awk '/^MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo)
if ((memory_jobs < jobs)); then jobs=$((memory_jobs > 0 ? memory_jobs : 1)); fi
cmake --build "$folder" -j "${KUN_JOBS:-$jobs}" ${targets[0]:+--target "${targets[@]}"} >&2
