#!/usr/bin/env bash
# The kernels' conformance tests under AddressSanitizer (every table of this machine) and under
# valgrind, which also sees reads of what nobody wrote (reference and AVX2: it has no AVX-512, and
# shows the program a processor without it). Minutes each, so not part of test.sh. The tests run in
# pieces, each of which says how long it took; run ./test.sh before.
#
# usage: tests/conformance_memory.sh [asan|valgrind|both] [PIECE/PIECES]
#        tests/conformance_memory.sh                 (both, all pieces)
#        tests/conformance_memory.sh valgrind 2/8    (only the second eighth of the tests)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
which=${1:-both}
share=${2:-0/8}
[[ $share =~ ^[0-9]{1,2}/[1-9][0-9]?$ ]] || which=usage
readonly which only=${share%/*} pieces=${share#*/}  # piece 0: all

# run_pieces NAME COMMAND...: the test program, once for each piece.
run_pieces() {
  local name=$1 piece start
  shift
  for ((piece = 1; piece <= pieces; ++piece)); do
    ((only == 0 || only == piece)) || continue
    start=$SECONDS
    GTEST_TOTAL_SHARDS=$pieces GTEST_SHARD_INDEX=$((piece - 1)) "$@" --gtest_brief=1 2>&1 |
      grep -vE ' info |^(Running main|Note: This is test shard)'
    echo "$name, piece $piece of $pieces: $((SECONDS - start)) s"
  done
}

under_asan() {
  tools/build.sh build-asan -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=-O1 -g1" \
    -DKUN_SANITIZE=address,undefined -DKUN_TESTS=ON -DKUN_BRIDGE_FOLDER="$PWD/build/bridge" \
    backend_cpu_tests
  UBSAN_OPTIONS=halt_on_error=1 KUN_SANITIZED=1 run_pieces asan build-asan/backend_cpu_tests
}

# Without what counts processors and wakes threads: valgrind runs one thread at a time.
under_valgrind() {
  command -v valgrind >/dev/null || { echo "apt-get install valgrind first" >&2 && exit 1; }
  run_pieces valgrind valgrind --quiet --error-exitcode=9 --fair-sched=yes \
    build/backend_cpu_tests \
    --gtest_filter='-CgroupQuota*:UsableCpuCount*:CpuDevice*:ThreadPool*:Topology*'
}

case $which in
  asan) under_asan ;;
  valgrind) under_valgrind ;;
  both)
    under_asan
    under_valgrind
    ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
echo "no error"
