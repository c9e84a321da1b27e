#!/usr/bin/env bash
# Makes sure that this machine has what Kun needs: packages by tools/packages.txt, and tools of the
# least versions that can build it. Asks apt only for what is missing; without root it prints the
# exact command and fails. What is too old is named together with the remedy.
#
# usage: tools/setup.sh [build|test|arm64|ci]...      (default: build)
#        tools/setup.sh --rust-bin                    prints the folder of a usable cargo
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly table="$here/packages.txt"
readonly cmake_min=3.22 gcc_min=12 cargo_min=1.87

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit 1
}

# at_least HAVE WANT: compares dotted version numbers.
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# The column of the table that serves this machine; derivatives use the release they name.
release_column() {
  local id version
  # shellcheck source=/dev/null
  id=$(. /etc/os-release && echo "${ID:-unknown}")
  # shellcheck source=/dev/null
  version=$(. /etc/os-release && echo "${VERSION_ID:-0}")
  case "$id-$version" in
    debian-12*) echo 2 ;;
    debian-13*) echo 3 ;;
    ubuntu-24.04*) echo 4 ;;
    *)
      say "this is $id $version; packages are listed for Debian 12, Debian 13 and Ubuntu 24.04."
      say "install what docs/building.md lists, then build by hand as it says."
      return 1
      ;;
  esac
}

# The folder of a cargo that is new enough. Ubuntu's versioned packages are not on PATH.
rust_bin() {
  local dir version
  for dir in "$(dirname "$(command -v cargo || echo /)")" /usr/bin \
    /usr/lib/rust-1.93/bin /usr/lib/rust-1.91/bin /usr/lib/rust-1.89/bin; do
    [[ -x $dir/cargo && -x $dir/rustc ]] || continue
    version=$("$dir/cargo" --version 2>/dev/null | awk '{print $2}') || continue
    if [[ -n $version ]] && at_least "$version" "$cargo_min"; then
      echo "$dir"
      return 0
    fi
  done
  return 1
}

is_installed() {
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# Prints the choices of one cell of the table, or nothing when one of them is there already.
missing_of() {
  local cell=${1%@*} choice choices
  if [[ $1 == *@* ]] && command -v "${1#*@}" >/dev/null; then return 0; fi
  IFS='|' read -ra choices <<<"$cell"
  for choice in "${choices[@]}"; do
    if is_installed "$choice"; then return 0; fi
  done
  echo "$cell"
}

# Of each "a|b" the first that apt knows; needs package lists.
first_known() {
  local cell choice choices
  for cell in "$@"; do
    IFS='|' read -ra choices <<<"$cell"
    for choice in "${choices[@]}"; do
      if apt-cache show "$choice" >/dev/null 2>&1; then break; fi
      choice=${choices[0]}
    done
    echo "$choice"
  done
}

missing_packages() {
  local column=$1 wanted=" $2 " set cells cell
  while read -r set cells; do
    [[ -z $set || $set == \#* || $wanted != *" $set "* ]] && continue
    read -ra cells <<<"$cells"
    cell=${cells[$((column - 2))]}
    [[ $cell == = ]] && cell=${cells[0]}
    if [[ $cell != - ]]; then missing_of "$cell"; fi
  done <"$table"
}

install_packages() {
  local names log
  if [[ $(id -u) -ne 0 ]]; then
    mapfile -t names < <(first_known "$@")
    say "these packages are missing, and installing them needs root. Run this, then try again:"
    printf '\n  sudo apt-get update && sudo apt-get install -y --no-install-recommends %s\n\n' \
      "${names[*]}" >&2
    exit 1
  fi
  say "fetching package lists"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o Acquire::Retries=3 -qq update </dev/null >&2 ||
    die "apt-get update failed: check the network and /etc/apt/sources.list, then try again."
  mapfile -t names < <(first_known "$@")
  say "installing ${names[*]} (this may take some minutes)"
  log=$(mktemp)
  if ! apt-get -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 -qq install -y --no-install-recommends \
    "${names[@]}" </dev/null >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "apt-get install failed (above, and $log); repair it, then try again."
  fi
  rm -f "$log"
}

check_version() {
  local name=$1 have=$2 want=$3 remedy=$4
  [[ -n $have ]] || die "$name is missing; $remedy"
  at_least "$have" "$want" || die "$name $have is too old, $want or newer is needed; $remedy"
}

check_versions() {
  local cxx=${CXX:-c++} version
  version=$(cmake --version 2>/dev/null | awk 'NR == 1 {print $3}') || true
  check_version cmake "$version" "$cmake_min" "install the package cmake and put it first on PATH."
  if [[ $("$cxx" --version 2>/dev/null) == *clang* ]]; then
    version=$("$cxx" -dumpversion)
    check_version "$cxx (clang)" "$version" 14 "set CXX to clang++-14 or g++-12, or newer."
  else
    version=$("$cxx" -dumpversion 2>/dev/null) || true
    check_version "$cxx (GCC)" "$version" "$gcc_min" "install the package g++, or set CXX."
  fi
  rust_bin >/dev/null ||
    die "cargo $cargo_min or newer is needed and none was found; on Debian install the packages" \
      "cargo-web and rustc-web (bookworm-security or trixie-security must be among the sources)," \
      "elsewhere any Rust toolchain of that version, and put it on PATH."
}

main() {
  local sets column missing
  case "${1:-}" in
    --rust-bin) rust_bin && return ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && return ;;
  esac
  sets="${*:-build}"
  [[ $sets == *test* && " $sets " != *" build "* ]] && sets="build $sets"
  if ! command -v dpkg-query >/dev/null || ! column=$(release_column); then
    check_versions
    return
  fi
  if [[ " $sets " == *" build "* ]] && ! rust_bin >/dev/null; then sets="$sets rust"; fi
  mapfile -t missing < <(missing_packages "$column" "$sets" | sort -u)
  if [[ ${#missing[@]} -gt 0 ]]; then install_packages "${missing[@]}"; fi
  check_versions
}

main "$@"
