# shellcheck shell=bash
# Sourced after testing.sh: which tests a run has, as tests/selections.txt says.

selections=$KVRUN_ROOT/tests/selections.txt
all_runs=(kernels-host kernels-lavapipe-{128,256,512} kernels-swiftshader e2e-host e2e-pair
  e2e-{lavapipe-256,swiftshader}{,-floor} asan-{unit,kernels-host,e2e-host} tsan-threads
  aarch64-{unit,unit-i8mm,unit-without-dot,kernels-host,kernels-swiftshader,storage,e2e-host})

# each_pattern VISIT: calls it with RUN, takes or leaves, and a pattern, of each.
each_pattern() {
  local line run what patterns pattern
  while IFS= read -r line; do
    case $line in
      '' | '#'*) ;;
      ' '*)
        read -r -a patterns <<<"$line"
        for pattern in "${patterns[@]}"; do "$1" "$run" "$what" "$pattern"; done
        ;;
      *' takes: '?* | *' leaves: '?*)
        read -r run what _ <<<"$line"
        what=${what%:}
        ;;
      *) echo "$selections: not \"RUN takes|leaves: WHY\": $line" && return 1 ;;
    esac
  done <"$selections"
}

# tests_of RUN: its GTEST_FILTER.
tests_of() {
  local of=$1 takes="" leaves=""
  each_pattern add_to_filter
  echo "${takes#:}${leaves:+-${leaves#:}}"
}

add_to_filter() {
  # shellcheck disable=SC2053
  [[ $of == $1 ]] || return 0
  if [[ $2 == takes ]]; then takes+=:$3; else leaves+=:$3; fi
}

# list_tests PROGRAM: "Suite.Test" lines.
list_tests() { "$1" --gtest_list_tests | awk '/^[^ ]/ { suite = $1; next } { print suite $1 }'; }

# check_selections TESTS: those of the programs in this folder.
check_selections() {
  local folder=$1 kernels e2e unit storage n_patterns=0 n_bad=0
  kernels=$(list_tests "$folder/kvrun_kernels_tests")
  e2e=$(list_tests "$folder/kvrun_e2e_tests")
  unit=$(list_tests "$folder/kvrun_unit_tests")
  storage=$(list_tests "$folder/kvrun_storage_tests")
  each_pattern check_pattern || return 1
  echo "$n_patterns patterns"
  [[ $n_patterns -gt 0 && $n_bad -eq 0 ]]
}

check_pattern() {
  local names="$unit $storage $kernels $e2e" run name
  case $1 in
    *unit*) names=$unit ;;
    *storage*) names=$storage ;;
    *kernels*) names=$kernels ;;
    *e2e*) names=$e2e ;;
  esac
  n_patterns=$((n_patterns + 1))
  for run in "${all_runs[@]}" ""; do
    # shellcheck disable=SC2053
    [[ $run != $1 ]] || break
  done
  if [[ -z $run ]]; then
    n_bad=$((n_bad + 1))
    echo "$1: there is no such run"
  fi
  for name in $names; do
    # shellcheck disable=SC2053
    [[ $name != $3 ]] || return 0
  done
  n_bad=$((n_bad + 1))
  echo "$1 $2 $3: there is no such test"
}
