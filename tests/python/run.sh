#!/usr/bin/env bash
# The Python package as the build folder has it, and `kun run-batch`, with scripted models and the
# default model. Called by test.sh, which sets KUN, KUN_BUILD and KUN_MODEL. How the wheel is built
# and installed is tools/check_wheel.sh's matter.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
root=$(cd "$here/../.." && pwd)
readonly root
build=${KUN_BUILD:-$root/build}
KUN=${KUN:-$build/kun}
KUN_MODEL=${KUN_MODEL:-$("$root/tools/fetch_default_model.py")}
export KUN KUN_MODEL

if ! compgen -G "$build/python/kun/_kun*.so" >/dev/null; then
  echo "there is no extension module in $build: configure it with -DKUN_PYTHON=ON and build it"
  echo "0 passed, 1 failed"
  exit 1
fi
python=$(<"$build/python/interpreter")
export PYTHONPATH="$build/python" PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=default

exec "$python" "$here/run_tests.py" "$@"
