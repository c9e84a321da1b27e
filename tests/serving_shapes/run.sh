#!/usr/bin/env bash
# Models of DeepSeek's layer shapes, narrowed, served to 8 users: see serve.py, which takes the real
# widths without --small.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
exec "$here/../with_numpy.sh" "$here/serve.py" --small
