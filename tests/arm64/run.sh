#!/usr/bin/env bash
# Cross-builds the whole program for arm64 and runs it under qemu: `kun logits` on a tiny model must
# give the stored logits on three processors, every kernel table must agree with the reference, and
# a processor must be offered the tables it can run and no others (qemu stops at an instruction
# that its processor lacks).
# The processors: cortex-a57 is the ARMv8.0 floor, neoverse-n1 has what a Kunpeng 920 has (dot
# products and half precision), max has everything qemu knows (int8 and bf16 matrices, SVE).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly root
readonly build="$root/build-arm64"
readonly processors=(cortex-a57 neoverse-n1 max)
declare -rA tables=(
  [cortex-a57]="reference, neon"
  [neoverse-n1]="reference, neon, neon_dot"
  [max]="reference, neon, neon_dot, neon_i8mm, neon_bf16"
)
passed=0 failed=0

skip() {
  printf 'skipped: %s\n0 passed, 0 failed, 1 skipped\n' "$*"
  exit 0
}

# check NAME COMMAND...: one test.
check() {
  local name=$1
  shift
  if "$@" >"$build/check.log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    tail -n 30 "$build/check.log"
    echo "FAILED: $name"
  fi
}

emulate() {
  local processor=$1
  shift
  timeout 900 qemu-aarch64 -L "$sysroot" -cpu "$processor" "$@"
}

# logits_match PROCESSOR MODEL [OPTION]...: exact arithmetic.
logits_match() {
  local processor=$1 model=$2
  shift 2
  emulate "$processor" "$build/kun" logits "$model" --ids "$ids" --dtype float32 "$@" \
    >"$build/logits.json" &&
    python3 "$root/tests/arm64/compare_logits.py" "$build/logits.json" "$tiny/expected.json"
}

# fast_logits_match PROCESSOR TABLE: weights and cache in BF16. Logits are up to 3.3 here, and off
# by .013 where inputs stay F32, by .021 where they are rounded to BF16 too (the tables of x86-64).
fast_logits_match() {
  emulate "$1" "$build/kun" logits "$tiny" --ids "$ids" --dtype bfloat16 --kernels "$2" \
    >"$build/logits.json" &&
    python3 "$root/tests/arm64/compare_logits.py" "$build/logits.json" "$tiny/expected.json" 0.04
}

has_tables() {
  local said
  said=$(emulate "$1" "$build/kun" logits "$tiny" --ids 1 --kernels none 2>&1) || true
  grep -E "which has $2(\$|[^,_])" <<<"$said"
}

[[ $(uname -m) == x86_64 ]] || skip "this is $(uname -m); the other tests already ran on it"
"$root/tools/setup.sh" arm64 || skip "the cross tools could not be installed (see above)"
command -v aarch64-linux-gnu-g++ >/dev/null || skip "there is no aarch64-linux-gnu-g++"
sysroot=$("$root/tools/arm64_sysroot.sh") || skip "the arm64 libraries could not be fetched (above)"
readonly sysroot

tiny="$root/tests/data/tiny-models/llama-gqa-llama3"
[[ -d $tiny ]] || tiny="$root/../shared/data/tiny-models/llama-gqa-llama3"
[[ -d $tiny ]] || skip "there is no tiny model in tests/data/tiny-models"
ids=$(python3 -c 'import json, sys
print(*json.load(open(sys.argv[1]))["tokens"], sep=",")' "$tiny/expected.json")
readonly tiny ids

# Rust: Debian's compiler, with its own standard library for arm64 beside the machine's.
export KUN_ARM64_SYSROOT=$sysroot PATH="/usr/bin:$PATH"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="--sysroot $sysroot/rust"

if ! "$root/tools/build.sh" "$build" -DCMAKE_BUILD_TYPE=Release -DKUN_TESTS=ON \
  -DCMAKE_TOOLCHAIN_FILE="$root/cmake/toolchains/aarch64-linux-gnu.cmake" \
  -DKUN_ARM64_SYSROOT="$sysroot" kun backend_cpu_tests; then
  printf 'FAILED: the cross build\n0 passed, 1 failed, 0 skipped\n'
  exit 1
fi

check "the program is for arm64" grep -q "AArch64" <(readelf -h "$build/kun")
check "no kernel object shares code" "$root/tools/check_kernel_symbols.sh" "$build"
check "logits from safetensors" logits_match neoverse-n1 "$tiny"
for processor in "${processors[@]}"; do
  check "the tables of $processor" has_tables "$processor" "${tables[$processor]}"
  for table in ${tables[$processor]//,/}; do
    check "fast logits from $table on $processor" fast_logits_match "$processor" "$table"
  done
  check "logits from GGUF on $processor" logits_match "$processor" "$tiny/model.gguf"
  check "logits from reference kernels on $processor" \
    logits_match "$processor" "$tiny" --kernels reference
  check "kernels agree with their reference on $processor" \
    emulate "$processor" "$build/backend_cpu_tests" --gtest_brief=1 \
    --gtest_filter="*EveryKernelTable*:*Attention*/${tables[$processor]##* }-*/reference"
done

check "the backend's other tests" emulate max "$build/backend_cpu_tests" --gtest_brief=1 \
  --gtest_filter="-*EveryKernelTable*:*Attention*:*Unpack*"

printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[[ $failed -eq 0 ]]
