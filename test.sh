#!/usr/bin/env bash
# Prepares the test tools, builds the program and its tests, and runs every test there is: the test
# programs through ctest, the suites of tests/*/run.sh, and the checks of tools/.
#
# usage: ./test.sh [--fast] [--filter REGEX]
#        --fast     only what ends within a minute after building: unit, conformance, checks
#        --filter   only tests, suites and checks whose names match
#
# The last line sums up: N passed, N failed, N skipped. Anything failed makes the exit status 1.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly root
readonly build="$root/build"

fast=false filter=""
passed=0 failed=0 skipped=0

say() { printf '\n== %s\n' "$*"; }

matches() { [[ -z $filter || $1 =~ $filter ]]; }

count() {
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

run_ctest() {
  local report="$build/ctest.xml" counts
  local -a selection=()
  say "test programs"
  $fast && selection+=(-L '^(unit|conformance|server|fuzz)$')
  [[ -n $filter ]] && selection+=(-R "$filter")
  rm -f "$report"
  ctest --test-dir "$build" -j "$(nproc)" --output-on-failure --no-tests=ignore --progress \
    --output-junit "$report" ${selection[0]:+"${selection[@]}"} >"$build/ctest.log" 2>&1 ||
    sed -n '/^Start testing/,$p;/Failed/,/Errors while/p' "$build/ctest.log" | tail -n 200
  if [[ ! -s $report ]]; then
    tail -n 50 "$build/ctest.log"
    echo "ctest left no report"
    count 0 1 0
    return
  fi
  counts=$("$root/tools/sum_tests.py" "$report")
  echo "$counts" | awk '{print $1 " passed, " $2 " failed, " $3 " skipped"}'
  # shellcheck disable=SC2086
  count $counts
}

# A check is one command; exit status 77 is a skip, as in automake, after printing why.
run_check() {
  local name=$1 status=0
  shift
  matches "$name" || return 0
  say "check $name"
  (cd "$root" && "$@") || status=$?
  case $status in
    0) count 1 0 0 ;;
    77) count 0 0 1 ;;
    *) count 0 1 0 && echo "FAILED: $name" ;;
  esac
}

run_checks() {
  run_check layers python3 tools/check_layers.py src
  run_check style python3 tools/check_style.py
  run_check scripts tools/check_scripts.sh
  if [[ -e $root/tools/check_kernel_symbols.sh ]]; then
    run_check kernel_symbols tools/check_kernel_symbols.sh "$build"
  fi
}

# A suite is tests/NAME/run.sh; it prints why it skips, and last "N passed, N failed[, N skipped]".
run_suite() {
  local script=$1 name log status=0 line
  name=$(basename "$(dirname "$script")")
  matches "$name" || return 0
  say "suite $name"
  log="$build/suite-$name.log"
  "$script" </dev/null 2>&1 | tee "$log" || status=$?
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$log" | tail -n 1) || true
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
    count "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[4]:-0}"
    if [[ $status -ne 0 && ${BASH_REMATCH[2]} -eq 0 ]]; then
      echo "FAILED: suite $name ended with status $status"
      count 0 1 0
    fi
  else
    echo "FAILED: suite $name ended with status $status and no summary line"
    count 0 1 0
  fi
}

run_suites() {
  local script
  for script in "$root"/tests/*/run.sh; do
    if [[ -x $script ]]; then run_suite "$script"; fi
  done
}

main() {
  while [[ $# -gt 0 ]]; do
    case "$1" in
      -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && return ;;
      --fast) fast=true ;;
      --filter)
        [[ $# -ge 2 ]] || { echo "test.sh: --filter needs a pattern" >&2 && exit 2; }
        filter=$2
        shift
        ;;
      *) echo "test.sh: unknown argument $1; see --help" >&2 && exit 2 ;;
    esac
    shift
  done

  "$root/tools/setup.sh" build test
  "$root/tools/build.sh" "$build" -DCMAKE_BUILD_TYPE=Release -DKUN_TESTS=ON -DKUN_PYTHON=ON
  run_checks
  if $fast; then
    run_ctest
  else
    # Tests that need the real model find it through this, whether programs or suites.
    KUN_MODEL=$("$root/tools/fetch_default_model.py")
    export KUN="$build/kun" KUN_BUILD="$build" KUN_MODEL
    run_ctest
    run_suites
  fi
  printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [[ $failed -eq 0 && $passed -gt 0 ]]
}

main "$@"
