#!/usr/bin/env bash
# What an int8 KV cache costs: the perplexity of a text with it, beside that with the cache of the
# arithmetic, which must be within half a percent. On short texts chance moves either way by as
# much as that, so this takes 20 windows of 512 tokens (a few minutes) and is run by hand.
#
# usage: tests/real_model/cache_perplexity.sh MODEL TEXT [OPTION]...   (options of kun perplexity)
set -euo pipefail

if [[ $# -lt 2 ]]; then
  sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly root kun=${KUN:-$root/build/kun} model=$1 text=$2
shift 2

# perplexity OPTION...: the number alone.
perplexity() {
  "$kun" perplexity "$model" --file "$text" --context 512 --windows 20 --json "$@" 2>/dev/null |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["perplexity"])'
}

own=$(perplexity "$@")
int8=$(perplexity --kv-cache-dtype int8 "$@")
python3 - "$own" "$int8" <<'PYTHON'
import sys

own, int8 = map(float, sys.argv[1:])
change = int8 / own - 1
print(f"perplexity {own:.4f}, with an int8 cache {int8:.4f} ({change:+.2%})")
sys.exit(0 if change < 0.005 else 1)
PYTHON
