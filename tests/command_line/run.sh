#!/usr/bin/env bash
# What the program says to words it cannot use, and to signals. Needs only python3. Called by
# test.sh, which sets KUN (the program).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
export KUN=${KUN:-$here/../../build/kun}
exec python3 "$here/command_line.py"
