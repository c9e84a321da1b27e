#!/usr/bin/env bash
# bench/make_model.py: its files must be what a converter would have written (names, shapes and keys
# of the stored tiny models), hold the same weights in every format, and be complete models that
# Kun can tokenize for and answer with.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

work=$(mktemp -d)
readonly work
trap 'rm -rf "$work"' EXIT
cd "$work"
"$here/../with_numpy.sh" "$here/check.py" "$here/../.."
