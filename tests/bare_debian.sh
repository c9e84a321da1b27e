#!/usr/bin/env bash
# Proves the two commands where nothing is preinstalled: makes a bare Debian tree, clones the
# committed state into it and runs run.sh and test.sh there. Tools that every developer's machine
# has hide missing install steps; this finds them. Needs root and debootstrap; not part of test.sh.
#
# usage: tests/bare_debian.sh [--release bookworm|trixie] [--only-setup] [--keep]
#
# How this machine reaches its package sources (apt, pip, cargo, certificates) is copied along.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root
release=bookworm only_setup=false keep=false
while [[ $# -gt 0 ]]; do
  case "$1" in
    --release) release=$2 && shift ;;
    --only-setup) only_setup=true ;;
    --keep) keep=true ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2 ;;
  esac
  shift
done
[[ $(id -u) -eq 0 ]] || { echo "debootstrap and chroot need root" >&2 && exit 1; }
command -v debootstrap >/dev/null || { echo "apt-get install debootstrap first" >&2 && exit 1; }

tree=${KUN_BARE_TREE:-/tmp/kun-bare-$release}
readonly tree release

cleanup() {
  umount -q "$tree/proc" "$tree/dev" || true
  if ! $keep && ! mountpoint -q "$tree/dev" && ! mountpoint -q "$tree/proc"; then
    rm -rf --one-file-system "$tree"
  fi
}
trap cleanup EXIT

# The mirror that this machine's own apt uses for Debian.
mirror() {
  # apt expands the format, not the shell.
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
    grep -v security | sort | uniq -c | sort -rn | awk 'NR == 1 {print $2}'
}

copy_access() {
  local file codename
  cp -a /etc/resolv.conf /etc/hosts "$tree/etc/" 2>/dev/null || true
  for file in /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/pip.conf \
    /usr/local/share/ca-certificates; do
    [[ -e $file ]] || continue
    mkdir -p "$tree$(dirname "$file")"
    cp -rL --no-target-directory "$file" "$tree$file" 2>/dev/null || true
  done
  for file in .config/pip .cargo/config.toml .cargo/config .npmrc; do
    [[ -e $HOME/$file ]] || continue
    mkdir -p "$tree/root/$(dirname "$file")"
    cp -rL "$HOME/$file" "$tree/root/$file"
  done
  rm -f "$tree"/etc/apt/sources.list.d/{nodesource,google}*
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  sed -i "s/\b$codename\b/$release/g" \
    "$tree"/etc/apt/sources.list "$tree"/etc/apt/sources.list.d/* 2>/dev/null || true
  chroot "$tree" update-ca-certificates >/dev/null 2>&1 || true
}

# Runs a command in the tree with a clean environment, but the machine's ways to its indexes.
inside() {
  local names='PIP_|CARGO_(HTTP|REGISTR|SOURCE|NET)|https?_proxy=|HTTPS?_PROXY=|no_proxy='
  local -a access
  names+='|SSL_CERT|REQUESTS_CA|CURL_CA|NODE_EXTRA'
  mapfile -t access < <(env | grep -E "^($names)" || true)
  chroot "$tree" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    ${access[0]:+"${access[@]}"} bash -c "cd /src/kun && $1" </dev/null
}

timed() {
  local began=$SECONDS
  echo "== $1"
  inside "$1"
  echo "== $((SECONDS - began)) s"
}

umount -q "$tree/proc" "$tree/dev" || true
if [[ ! -e $tree/etc/debian_version ]]; then
  debootstrap --variant=minbase --include=ca-certificates "$release" "$tree" "$(mirror)" >&2
fi
mount -t proc proc "$tree/proc"
mount --bind /dev "$tree/dev"
copy_access
rm -rf "$tree/src"
mkdir -p "$tree/src"
git clone -q "file://$root" "$tree/src/kun"
if [[ -d $root/../shared/data ]]; then
  mkdir -p "$tree/src/shared"
  cp -r "$root/../shared/data" "$tree/src/shared/"
fi

if $only_setup; then
  timed "tools/setup.sh build test arm64 ci"
  timed "tools/setup.sh build test arm64 ci"
  timed "tools/build.sh build -DCMAKE_BUILD_TYPE=Release -DKUN_TESTS=ON base tensor"
  timed "tools/fetch_default_model.py"
  timed "tools/arm64_sysroot.sh"
else
  timed "./run.sh --build"
  timed "./run.sh --once 'The capital of France is'"
  timed "./test.sh"
fi
echo "the bare $release tree can do it"
