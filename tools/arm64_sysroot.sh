#!/usr/bin/env bash
# Unpacks the arm64 libraries that Kun links, and Rust's standard library for arm64, into a folder,
# and prints its path. apt resolves and verifies the packages with a private state, so the machine
# needs no second architecture and no root; only tools/setup.sh arm64 has to have run.
#
# The folder is $KUN_HOME/sysroot-arm64-<hash of what is wanted> and is made once.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
home=${KUN_HOME:-$HOME/.cache/kun}

say() { printf 'arm64: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit 1
}

# The libraries of the set build and the test framework, as packages.txt names them.
library_packages() {
  local column=2
  grep -q '^VERSION_ID="13' /etc/os-release && column=3
  awk -v column="$column" '$1 == "build" || $1 == "test" {
    cell = $column == "=" ? $2 : $column
    if (cell ~ /^lib.*-dev$|^zlib1g-dev$|-cpp-dev$/) print cell
  }' "$here/packages.txt"
}

# An apt that knows arm64 only and keeps its lists under the folder $1.
private_apt() {
  local state=$1
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
  : >"$state/status"
  cat >"$state/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Acquire::Retries "3";
Dir::State "$state";
Dir::State::Lists "$state/lists";
Dir::State::status "$state/status";
Dir::Cache "$state/cache";
Debug::NoLocking "true";
CONF
  export APT_CONFIG="$state/apt.conf"
  # Image builders remove every archive right after a download; not these.
  apt-get -qq -o APT::Update::Post-Invoke-Success::= update >&2 ||
    die "the arm64 package lists could not be fetched: is arm64 among the mirror's architectures?"
}

# Absolute links would lead out of the folder.
relative_links() {
  local root=$1 link target
  find "$root" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
    target=$(readlink "$link")
    ln -sfnr "$root$target" "$link"
  done
}

fetch() {
  local state=$1 root=$2 rust_version deb
  local -a packages
  private_apt "$state"
  mapfile -t packages < <(library_packages)
  packages+=(libc6-dev libstdc++-12-dev)
  grep -q '^VERSION_ID="13' /etc/os-release && packages[-1]=libstdc++-14-dev
  say "fetching ${#packages[@]} packages and what they need"
  # Whether the packages could be configured does not matter: they are only unpacked.
  apt-get -qq install -y --download-only --no-install-recommends "${packages[@]}" >&2 ||
    die "the arm64 packages could not be fetched"
  # The compiler's metadata format is tied to its version: take exactly the installed one's.
  rust_version=$(dpkg-query -W -f '${Version}' rustc-web) || die "rustc-web is not installed"
  (cd "$state/cache/archives" && for deb in libstd-rust-web-dev \
    "libstd-rust-web-$(cut -d. -f1,2 <<<"$rust_version")"; do
    apt-get -qq download "$deb=${rust_version%+b[0-9]*}" >&2 ||
      apt-get -qq download "$deb" >&2 ||
      die "Rust's standard library $rust_version for arm64 could not be fetched"
  done)
  for deb in "$state"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$root"; done
  # A release with merged /usr keeps the loader there, and programs ask for it in /lib.
  [[ -e $root/lib ]] || ln -s usr/lib "$root/lib"
  relative_links "$root"
  rm -rf "$root/usr/share/doc" "$root/usr/share/man" "$root"/usr/lib/*/librustc_driver-*.so
  # What rustc calls a sysroot: build scripts need the machine's own library beside the target's.
  mkdir -p "$root/rust/lib/rustlib"
  ln -s ../../../usr/lib/rustlib/aarch64-unknown-linux-gnu "$root/rust/lib/rustlib/"
  ln -s "$(/usr/bin/rustc --print sysroot)/lib/rustlib/x86_64-unknown-linux-gnu" \
    "$root/rust/lib/rustlib/"
}

main() {
  local key target
  key=$({
    cat "$here/packages.txt" "${BASH_SOURCE[0]}" /etc/os-release
    dpkg-query -W -f '${Version}' rustc-web
  } | sha256sum | cut -c -16)
  target="$home/sysroot-arm64-$key"
  if [[ ! -d $target ]]; then
    mkdir -p "$home"
    work=$(mktemp -d "$home/.sysroot-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/root"
    fetch "$work/state" "$work/root"
    mv -T "$work/root" "$target"
  fi
  echo "$target"
}

main "$@"
