#!/usr/bin/env bash
# Opens a suite whose models bench/make_model.py writes: runs the Python program $1 with the other
# arguments by a python3 that has numpy, or says why the suite is skipped.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root

skip() {
  printf 'skipped: %s\n0 passed, 0 failed, 1 skipped\n' "$*"
  exit 0
}

[[ -x $root/build/kun ]] || skip "build/kun has not been built"
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import numpy' 2>/dev/null; then
    PYTHONDONTWRITEBYTECODE=1 exec "$python" "$@"
  fi
done
skip "no python3 here has numpy (the package python3-numpy)"
