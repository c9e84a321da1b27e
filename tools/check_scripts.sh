#!/usr/bin/env bash
# Holds every shell script to shellcheck and every Python file to a clean parse. Status 77, a skip,
# when shellcheck is not installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t python < <(git ls-files '*.py')
python3 - "${python[@]}" <<'PYTHON'
import ast, pathlib, sys
for name in sys.argv[1:]:
    ast.parse(pathlib.Path(name).read_text(), name)
PYTHON

command -v shellcheck >/dev/null || { echo "skipped: shellcheck is not installed" && exit 77; }
mapfile -t scripts < <(git ls-files '*.sh' .ci/run)
shellcheck "${scripts[@]}"
echo "${#scripts[@]} shell scripts and ${#python[@]} Python files are clean"
