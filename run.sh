#!/usr/bin/env bash
# Prepares everything Kun needs and serves a model: packages, the program, the default model.
#
# usage: ./run.sh [MODEL] [serve flags]       serve on 127.0.0.1:8000 (or --host, --port)
#        ./run.sh [MODEL] --once PROMPT       print one greedy completion and exit
#        ./run.sh --build                     prepare everything, start nothing
#
# MODEL is a GGUF file, a Hugging Face folder, what `kun pull` fetched, or smollm2 (the default).
# The program is left at build/kun; models are cached under $KUN_HOME (default ~/.cache/kun).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly root
readonly kun="$root/build/kun"

say() { printf '%s\n' "$*" >&2; }

prepare() {
  "$root/tools/setup.sh" build
  local -a without_tests=()
  # Where test.sh configured the folder, the tests stay in it.
  [[ -f $root/build/CMakeCache.txt ]] || without_tests=(-DKUN_TESTS=OFF)
  "$root/tools/build.sh" "$root/build" -DCMAKE_BUILD_TYPE=Release \
    ${without_tests[0]:+"${without_tests[@]}"} kun
}

# flag NAME DEFAULT ARGUMENTS...: the value that the arguments give to --NAME.
flag() {
  local name=--$1 value=$2
  shift 2
  while [[ $# -gt 0 ]]; do
    case "$1" in
      "$name") value=${2:-$value} ;;
      "$name="*) value=${1#*=} ;;
    esac
    shift
  done
  printf '%s\n' "$value"
}

# Waits in the background until the server is ready, then prints a request to paste.
announce() {
  local url=$1 name=$2 key=$3 authorization=""
  [[ -n $key ]] && authorization=$'\n'"  -H 'Authorization: Bearer $key' \\"
  for ((i = 0; i < 3000; i++)); do
    kill -0 $$ 2>/dev/null || return 0
    if curl -ksf -m 2 -o /dev/null "$url/health"; then
      cat >&2 <<TEXT

Kun is ready. Paste this into another terminal:

curl ${url/https:/-k https:}/v1/chat/completions \\$authorization
  -H 'Content-Type: application/json' \\
  -d '{"model": "$name", "messages": [{"role": "user", "content": "Who are you?"}]}'

TEXT
      return 0
    fi
    sleep 0.2
  done
}

serve() {
  local model=$1 name=$2 host port scheme=http url
  shift 2
  # What the caller gives wins over these; a flag may be given once only.
  [[ -n $(flag host "" "$@") ]] || set -- --host 127.0.0.1 "$@"
  [[ -n $(flag port "" "$@") ]] || set -- --port 8000 "$@"
  [[ -n $(flag served-model-name "" "$@") ]] || set -- --served-model-name "$name" "$@"
  name=$(flag served-model-name "" "$@")
  host=$(flag host "" "$@")
  port=$(flag port "" "$@")
  [[ -n $(flag ssl-certfile "" "$@") ]] && scheme=https
  url=${host/#0.0.0.0/127.0.0.1}
  [[ $url == *:* ]] && url="[$url]"
  url="$scheme://$url:$port"
  if [[ -z $(flag uds "" "$@") && $port != 0 ]] && ! curl -ks -m 2 -o /dev/null "$url/health"; then
    announce "$url" "$name" "$(flag api-key "" "$@")" &
  fi
  exec "$kun" serve "$model" "$@"
}

main() {
  local model=smollm2 name once="" is_once=false build_only=false
  local -a flags=()
  if [[ $# -gt 0 && $1 != -* ]]; then
    model=$1
    shift
  fi
  while [[ $# -gt 0 ]]; do
    case "$1" in
      -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && return ;;
      --build) build_only=true ;;
      --once)
        [[ $# -ge 2 ]] || { say "run.sh: --once needs a prompt" && exit 2; }
        is_once=true once=$2
        shift
        ;;
      *) flags+=("$1") ;;
    esac
    shift
  done

  prepare
  name=$(basename "$model")
  if [[ $model == smollm2 ]]; then
    model=$("$root/tools/fetch_default_model.py")
  fi
  if $build_only; then
    say "Kun is built: $kun"
  elif $is_once; then
    exec "$kun" complete "$model" --prompt "$once" --max-tokens 64 --temperature 0 \
      ${flags[0]:+"${flags[@]}"}
  else
    serve "$model" "$name" ${flags[0]:+"${flags[@]}"}
  fi
}

main "$@"
