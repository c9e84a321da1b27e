#!/usr/bin/env bash
# A server with a memory budget under everything that takes memory. Needs only python3. Called by
# test.sh, which sets KUN (the program); overload.py --timed, run by hand, adds tenants, deadlines
# and Retry-After by the clock.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
export KUN=${KUN:-$here/../../build/kun}
exec python3 "$here/overload.py"
