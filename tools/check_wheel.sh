#!/usr/bin/env bash
# Proves that `pip install .` works by itself: builds the wheel into a fresh virtual environment,
# runs the examples and the tests with what was installed there, and checks the types. By hand, for
# test.sh tests the extension module where the build folder has it.
#
# usage: tools/check_wheel.sh [MODEL]      (default: the model that run.sh fetches)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root
model=${1:-$("$root/tools/fetch_default_model.py")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# As tools/build.sh: let ccache recognize what the normal build folder compiled, and share what
# cargo has built.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
if rust=$("$root/tools/setup.sh" --rust-bin); then PATH="$rust:$PATH"; fi
if [[ -d $root/build/bridge ]]; then
  export CMAKE_ARGS="${CMAKE_ARGS:-} -DKUN_BRIDGE_FOLDER=$root/build/bridge"
fi

# The type of the build folder, if there is one: its objects are the ones that ccache has.
type=$(sed -n 's/^CMAKE_BUILD_TYPE:[A-Z]*=//p' "$root/build/CMakeCache.txt" 2>/dev/null || true)

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q -C "cmake.build-type=${type:-Release}" "$root"
"$work/venv/bin/pip" install -q mypy==1.14.1
cd "$work"
unset PYTHONPATH
"$work/venv/bin/python" -c 'import kun; print("installed:", kun.__version__, kun.__file__)'
"$work/venv/bin/python" "$root/examples/offline_inference.py" "$model"
"$work/venv/bin/python" "$root/examples/async_streaming.py" "$model"
"$work/venv/bin/python" "$root/examples/structured_outputs.py" "$model"
"$work/venv/bin/mypy" --strict --allow-untyped-defs --allow-untyped-calls \
  "$root/examples/offline_inference.py" "$root/examples/structured_outputs.py"
"$work/venv/bin/mypy" --strict -p kun
KUN=${KUN:-$root/build/kun} KUN_MODEL=$model \
  "$work/venv/bin/python" "$root/tests/python/run_tests.py" test_llm test_async
