#!/usr/bin/env bash
# What others wrote, against `kun serve`: the API tests that the openai and anthropic clients ship
# in their source archives, LiteLLM, LangChain's OpenAI integration, and schemathesis over
# /openapi.json. By hand, for it installs half a gigabyte and takes minutes; report.md is what it
# found last. tests/clients has the part that test.sh runs.
#
# usage: tests/conformance/check.sh [REPORT]     (default: report.md in the build folder)
#        KUN: the program; KUN_MODEL: a GGUF file; KUN_HOME: where the clients are installed
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
root=$(cd "$here/../.." && pwd)
kun=${KUN:-$root/build/kun}
model=${KUN_MODEL:-$("$root/tools/fetch_default_model.py")}
report=${1:-$root/build/conformance.md}
clients=${KUN_HOME:-$HOME/.cache/kun}/conformance
clients+=/$(sha256sum <"$here/requirements.txt" | cut -c -12)
work=$(mktemp -d)
server="" failed=0
# Names that the clients' own tests give the model.
names=(kun gpt-6-astra gpt-3.5-turbo-instruct text-embedding-3-small model model_id
  claude-opus-5-5)

stop_server() {
  if [[ -n $server ]]; then
    kill "$server" || true
    wait "$server" || true
  fi
}

finish() {
  stop_server
  rm -rf "$work"
}
trap finish EXIT

install_clients() {
  [[ -e $clients/ready ]] && return
  rm -rf "$clients"
  mkdir -p "$clients"
  python3 -m venv "$clients/venv"
  "$clients/venv/bin/pip" install -q -r "$here/requirements.txt"
  local name
  for name in openai anthropic; do
    "$clients/venv/bin/pip" download -q --no-deps --no-build-isolation --no-binary :all: \
      -d "$clients" "$(grep "^$name==" "$here/requirements.txt")" || true
    tar xzf "$clients/$name"-*.tar.gz -C "$clients"
  done
  touch "$clients/ready"
}

start_server() { # MODEL FLAG...
  stop_server
  : >"$work/serve.log"
  "$kun" serve "$@" --host 127.0.0.1 --port 0 --kv-cache-memory-bytes 256MiB \
    --served-model-name "${names[@]}" >"$work/serve.log" 2>&1 &
  server=$!
  local port=""
  for ((i = 0; i < 600; i++)); do
    port=$(sed -nE 's/.*serving .* on 127\.0\.0\.1:([0-9]+)$/\1/p' "$work/serve.log")
    [[ -n $port ]] && break
    kill -0 "$server" || break
    sleep 0.1
  done
  if [[ -z $port ]]; then
    cat "$work/serve.log"
    exit 1
  fi
  export KUN_URL="http://127.0.0.1:$port" KUN_MODEL_NAME=kun
}

# Adds a row to the report: what, result, status.
tell() {
  local good=yes
  if [[ $3 -ne 0 ]]; then good=NO failed=1; fi
  printf '| %s | %s | %s |\n' "$1" "$2" "$good" >>"$report"
}

run_pytest() { # TITLE FOLDER BASE_URL TESTS...
  local title=$1 folder=$2 url=$3 status=0 line
  shift 3
  (cd "$folder" && TEST_API_BASE_URL=$url PYTHONPATH=$here KUN_NOTES=$work/notes \
    "$clients/venv/bin/python" -m pytest -p refusals -p no:cacheprovider -q --tb=short -n 0 "$@") \
    >"$work/pytest.log" 2>&1 || status=$?
  line=$(grep -E '(passed|failed|error).* in [0-9.]+s' "$work/pytest.log" | tail -n 1 | tr -d '=')
  if [[ $status -ne 0 ]]; then
    grep -E '^(FAILED|ERROR)|^E  ' "$work/pytest.log" | head -n 60
  fi
  tell "$title" "${line:-did not run}" "$status"
}

fuzz() {
  local status=0 line checks=not_a_server_error,status_code_conformance,content_type_conformance
  checks+=,response_schema_conformance,unsupported_method
  # One worker: with several, schemathesis itself stumbles. It leaves a folder where it runs.
  (cd "$work" && "$clients/venv/bin/schemathesis" run "$KUN_URL/openapi.json" --checks "$checks" \
    --phases examples,coverage,fuzzing --generation-database none --seed 7 --max-examples 60 \
    --workers 1 --request-timeout 60 --continue-on-failure) >"$work/fuzz.log" 2>&1 || status=$?
  line=$(grep -E '[0-9]+ generated' "$work/fuzz.log" | tail -n 1 | tr -s ' ' | tr -d '|')
  if [[ $status -ne 0 ]]; then tail -n 200 "$work/fuzz.log"; fi
  if ! kill -0 "$server"; then
    echo "the server has died"
    status=1
  fi
  tell "schemathesis, every operation" "${line:-did not run}" "$status"
}

main() {
  install_clients
  mkdir -p "$(dirname "$report")"
  : >"$work/notes"
  {
    echo "# Conformance"
    echo
    echo "Written by \`tests/conformance/check.sh\`, with Kun $("$kun" --version), the model"
    echo "$(basename "$model") and the versions of \`requirements.txt\`. \"xfailed\" are tests of"
    echo "what Kun refuses on purpose; each was answered with a clear 4xx, for the reasons below."
    echo
    echo "| what | result | good |"
    echo "|---|---|---|"
  } >"$report"
  # Nearly all of these tests set no limit to the answer: the context does.
  start_server "$model" --max-model-len 96
  run_pytest "openai $(basename "$clients"/openai-*/ | cut -d- -f2): its API tests" \
    "$clients"/openai-*/ "$KUN_URL/v1" tests/api_resources/chat/test_completions.py \
    tests/api_resources/test_completions.py tests/api_resources/test_models.py \
    tests/api_resources/test_responses.py tests/api_resources/responses
  mapfile -t -O "${#names[@]}" names < <("$clients/venv/bin/python" -c \
    'from anthropic._data import DEPRECATED_MODELS as d; print(*d, sep="\n")')
  start_server "$model" --max-model-len 2048 --tool-call-parser hermes
  run_pytest "anthropic $(basename "$clients"/anthropic-*/ | cut -d- -f2): its API tests" \
    "$clients"/anthropic-*/ "$KUN_URL" tests/api_resources/test_messages.py \
    tests/api_resources/test_models.py
  run_pytest "both clients in strict mode" "$here" "$KUN_URL" test_strict.py
  run_pytest "LiteLLM" "$here" "$KUN_URL" test_litellm.py
  run_pytest "LangChain's OpenAI integration" "$here" "$KUN_URL" test_langchain.py
  start_server "script:$here/../clients/tools.script" --tool-call-parser hermes \
    --reasoning-parser qwen3
  fuzz
  {
    echo
    echo "Refused on purpose:"
    echo
    sort -u "$work/notes"
    echo
    cat "$here/not_run.md"
  } >>"$report"
  cat "$report"
  [[ $failed -eq 0 ]]
}

main
