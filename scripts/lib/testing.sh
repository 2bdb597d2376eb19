# shellcheck shell=bash
# Sourced by scripts/test and .ci/run: runs steps, keeps their logs and counts what passed, failed and was skipped.

passed=0
failed=0
skipped=0
failed_steps=()
skipped_names=()
logs=$KVRUN_ROOT/build/test-logs
step_limit_s=1200  # a step that hangs fails
launcher=()        # what runs the test programs where this machine cannot by itself: words, the first of them a path
mkdir -p "$logs"

# What a person has set for kvrun must not change what is tested, but for where test data lies.
for variable in $(compgen -e KVRUN_); do
  case $variable in
    KVRUN_ROOT | KVRUN_MODEL | KVRUN_SHARED_DIR | KVRUN_SWIFTSHADER_ICD | KVRUN_LONG_TESTS | KVRUN_TEST_UNTIL) ;;
    *) unset "$variable" ;;
  esac
done

report() { printf '%-4s  %-34s %s\n' "$@"; }

# fail_step NAME WHY: counts a failure that no test counted.
fail_step() {
  failed=$((failed + 1))
  failed_steps+=("$1")
  report FAIL "$1" "$2 (log: ${logs#"$KVRUN_ROOT"/}/$1.log)"
  tail -n 40 "$logs/$1.log" | sed 's/^/      /'
}

skip_step() {
  skipped=$((skipped + 1))
  skipped_names+=("$1: $2")
  report SKIP "$1" "$2"
}

# has_time NAME NEED_S: whether a step that takes so long ends by KVRUN_TEST_UNTIL (seconds since 1970), where that is set.
# Else it is counted as skipped.
has_time() {
  local left_s=$((${KVRUN_TEST_UNTIL:-9999999999} - $(date +%s)))
  [[ $2 -gt $left_s ]] || return 0
  skip_step "$1" "$left_s s are left, and it would take $2 s: run it by hand"
  return 1
}

# step NAME COMMAND...: one check, which passes if the command does.
step() {
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$logs/$name.log" 2>&1; then
    passed=$((passed + 1))
    report ok "$name" "$((SECONDS - start)) s"
  else
    fail_step "$name" "exit code $?"
  fi
}

beside_name=""
beside_job=""

# beside NAME COMMAND...: a step that has one thread, while those that follow run, until join_beside. One at a time.
beside() {
  beside_name=$1
  shift
  run_beside "$@" >"$logs/$beside_name.log" 2>&1 &
  beside_job=$!
}

run_beside() {
  local start=$SECONDS status=0
  "$@" &
  # shellcheck disable=SC2064
  trap "kill $! 2>/dev/null" TERM
  wait $! || status=$?
  echo "$((SECONDS - start)) s" >"$logs/$beside_name.time"
  return "$status"
}

join_beside() {
  local status=0
  wait "$beside_job" || status=$?
  beside_job=""
  if [[ $status -eq 0 ]]; then
    passed=$((passed + 1))
    report ok "$beside_name" "$(<"$logs/$beside_name.time") beside others"
  else
    fail_step "$beside_name" "exit code $status"
  fi
}

# The validation layer's messages in a log, but for the test that makes one on purpose.
validation_messages() {
  awk '/^\[ RUN      \]/ { on_purpose = /CountsValidationMessages/ }
       /kvrun: vulkan validation/ && !on_purpose' "$1"
}

attribute() { sed -n "s/^<testsuites .*\\b$2=\"\\([0-9]*\\)\".*/\\1/p" "$1" | head -n 1; }

# gtest NAME PROGRAM [VARIABLE=VALUE...]: counts the program's tests one by one. The programs that it starts are run by the
# launcher too.
gtest() { run_gtest 1 "$@"; }

# The same in two halves at once: for tests of which most have one thread. None minds another that runs beside it.
gtest_halves() { run_gtest 2 "$@"; }

# run_gtest SHARDS NAME PROGRAM [VARIABLE=VALUE...]
run_gtest() {
  local shards=$1 name=$2 program=$3 start=$SECONDS shard
  local -a jobs=() statuses=()
  shift 3
  if [[ ! -x $program ]]; then
    echo "$program was not built" >"$logs/$name.log"
    fail_step "$name" "not built"
    return
  fi
  # What a shell puts in the background ignores Ctrl-C: tests send that signal, and a person who does ends all.
  trap 'kill "${jobs[@]}" ${beside_job:+"$beside_job"} 2>/dev/null; exit 130' INT TERM
  for ((shard = 0; shard < shards; ++shard)); do
    local part=$name
    [[ $shards -eq 1 ]] || part=$name-$((shard + 1))
    rm -f -- "$logs/$part.xml"
    timeout "$step_limit_s" env --default-signal=INT,QUIT ${launcher[0]:+KVRUN_TEST_LAUNCHER="${launcher[*]}"} GTEST_TOTAL_SHARDS="$shards" \
      GTEST_SHARD_INDEX="$shard" "$@" "${launcher[@]}" "$program" --gtest_output="xml:$logs/$part.xml" \
      >"$logs/$part.log" 2>&1 &
    jobs+=($!)
  done
  for ((shard = 0; shard < shards; ++shard)); do
    statuses[shard]=0
    wait "${jobs[shard]}" || statuses[shard]=$?
  done
  trap - INT TERM
  for ((shard = 0; shard < shards; ++shard)); do
    local part=$name
    [[ $shards -eq 1 ]] || part=$name-$((shard + 1))
    if [[ -s $logs/$part.xml ]]; then
      count_results "$part" "$logs/$part.xml" "$logs/$part.log" "${statuses[shard]}" "$((SECONDS - start))"
    else
      fail_step "$part" "ended without a result, exit code ${statuses[shard]}"
    fi
  done
}

count_results() {
  local name=$1 xml=$2 log=$3 status=$4 seconds=$5 tests failures left_out
  tests=$(attribute "$xml" tests)
  failures=$(attribute "$xml" failures)
  left_out=$(grep -c -E 'result="(skipped|suppressed)"' "$xml" || true)
  passed=$((passed + tests - failures - left_out))
  failed=$((failed + failures))
  skipped=$((skipped + left_out))
  mapfile -t -O "${#skipped_names[@]}" skipped_names < <(
    sed -n "s/^\\[  SKIPPED \\] \\([^ ]*\\) (.*/$name: \\1/p" "$log")
  if [[ $failures -gt 0 ]]; then
    failed_steps+=("$name")
    report FAIL "$name" "$failures of $tests failed (log: ${log#"$KVRUN_ROOT"/})"
    grep -E '^\[  FAILED  \] .* \(' "$log" | sort -u | sed 's/^/      /' || true
  elif [[ $status -ne 0 ]]; then
    fail_step "$name" "its tests passed, but its exit code is $status"
  elif [[ $tests -eq 0 ]]; then
    fail_step "$name" "holds no test"
  elif [[ -n $(validation_messages "$log") ]]; then
    fail_step "$name" "the validation layer complains"
  else
    report ok "$name" "$((tests - left_out)) passed, $left_out skipped, $seconds s"
  fi
}

# The list of what was skipped and failed, and the summary on the last line; fails if anything did.
finish() {
  echo
  if [[ ${#skipped_names[@]} -gt 0 ]]; then printf 'skipped: %s\n' "${skipped_names[@]}"; fi
  if [[ ${#failed_steps[@]} -gt 0 ]]; then printf 'failed: %s\n' "${failed_steps[@]}"; fi
  echo "$passed passed, $failed failed, $skipped skipped"
  [[ $failed -eq 0 && $passed -gt 0 ]]
}
