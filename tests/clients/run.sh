#!/usr/bin/env bash
# The official `openai` clients, Python and Node, against `kun serve` with the default model; and
# `openai` and `anthropic` against a scripted model that thinks and calls tools.
# Called by test.sh, which sets KUN (the program) and KUN_MODEL (a GGUF file).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
root=$(cd "$here/../.." && pwd)
kun=${KUN:-$root/build/kun}
model=${KUN_MODEL:-$("$root/tools/fetch_default_model.py")}
home=${KUN_HOME:-$HOME/.cache/kun}
work=$(mktemp -d)
server=""

finish() {
  [[ -n $server ]] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT

# Client libraries live in the cache, in folders named after what was asked for.
python_client() {
  local folder
  folder="$home/clients/python-$(sha256sum <"$here/requirements.txt" | cut -c -12)"
  if [[ ! -e $folder/ready ]]; then
    python3 -m venv "$folder" >&2
    "$folder/bin/pip" install -q -r "$here/requirements.txt" >&2
    touch "$folder/ready"
  fi
  echo "$folder/bin/python"
}

node_client() {
  local folder
  folder="$home/clients/node-$(sha256sum <"$here/package-lock.json" | cut -c -12)"
  if [[ ! -e $folder/ready ]]; then
    mkdir -p "$folder"
    cp "$here/package.json" "$here/package-lock.json" "$folder"
    npm --prefix "$folder" ci --silent --no-audit --no-fund >&2
    touch "$folder/ready"
  fi
  cp "$here/test_openai.mjs" "$folder"
  echo "$folder/test_openai.mjs"
}

start_server() { # MODEL FLAG...
  if [[ -n $server ]]; then
    kill "$server"
    wait "$server" || true
  fi
  : >"$work/serve.log"  # the background shell may be late to make it
  "$kun" serve "$@" --host 127.0.0.1 --port 0 --kv-cache-memory-bytes 1GiB \
    >"$work/serve.log" 2>&1 &
  server=$!
  local port=""
  for ((i = 0; i < 600; i++)); do
    port=$(sed -nE 's/.*serving .* on 127\.0\.0\.1:([0-9]+)$/\1/p' "$work/serve.log")
    [[ -n $port ]] && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  if [[ -z $port ]]; then
    cat "$work/serve.log"
    echo "the server did not start"
    echo "0 passed, 1 failed"
    exit 1
  fi
  export KUN_URL="http://127.0.0.1:$port" KUN_PID=$server
}

# Adds what the tests of FILE say to passed and failed.
run_python() { # PYTHON FILE
  local line
  "$1" "$2" 2>&1 | tee "$work/python.log" || true
  line=$(grep -E '^python: [0-9]+ passed, [0-9]+ failed$' "$work/python.log") ||
    line="python: 0 passed, 1 failed"
  read -r _ p _ f _ <<<"${line//,/}"
  passed=$((passed + p)) failed=$((failed + f))
}

main() {
  local passed=0 failed=0
  local python node
  python=$(python_client)
  node=$(node_client)
  start_server "script:$here/tools.script" --tool-call-parser hermes --reasoning-parser qwen3
  run_python "$python" "$here/test_tools.py"
  start_server "$model"
  run_python "$python" "$here/test_openai.py"
  node --test --test-reporter=tap "$node" 2>&1 | tee "$work/node.log" || true
  p=$(sed -nE 's/^# pass ([0-9]+)$/\1/p' "$work/node.log")
  f=$(sed -nE 's/^# fail ([0-9]+)$/\1/p' "$work/node.log")
  passed=$((passed + ${p:-0})) failed=$((failed + ${f:-1}))
  if [[ $failed -gt 0 ]]; then tail -n 50 "$work/serve.log"; fi
  echo "$passed passed, $failed failed"
  [[ $failed -eq 0 ]]
}

main
