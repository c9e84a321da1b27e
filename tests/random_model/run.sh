#!/usr/bin/env bash
# bench/make_model.py: its files must be what a converter would have written (names, shapes and keys
# of the stored tiny models), hold the same weights in every format, and be complete models that
# Kun can tokenize for and answer with.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly root

skip() {
  printf 'skipped: %s\n0 passed, 0 failed, 1 skipped\n' "$*"
  exit 0
}

python=""
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import numpy' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[[ -n $python ]] || skip "no python3 here has numpy (the package python3-numpy)"
[[ -x $root/build/kun ]] || skip "build/kun has not been built"

work=$(mktemp -d)
readonly work
trap 'rm -rf "$work"' EXIT
cd "$work"
status=0
PYTHONDONTWRITEBYTECODE=1 "$python" "$root/tests/random_model/check.py" "$root" || status=$?
exit "$status"
