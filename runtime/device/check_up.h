// The examination of one device by its self-tests: planned before it begins, so that the tests of several
// devices are counted together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/open_device.h"

namespace kvrun {

struct CheckUpPace {
  std::function<Status()> tick;  // after each test; its error ends the examination
  // Whether the time is up, and the tests that are to come are left out. Empty: there is time for all.
  std::function<bool()> is_over;
};

struct CheckUp {
  size_t n_tests = 0;
  std::function<Result<DoctorReport>(const CheckUpPace& pace)> run;
};

inline SelfTestResult ToResult(const std::string& name, const Result<std::string>& outcome) {
  return {name, outcome.ok(), outcome.ok() ? *outcome : outcome.status().message()};
}

// In which order tests show most before the time is up: the first of each operation (what is before " (" in a
// name), then the second of each, and so on.
inline std::vector<size_t> SpreadOut(std::span<const std::string> names) {
  std::map<std::string, size_t> seen;
  std::vector<size_t> turns;
  for (const std::string& name : names) turns.push_back(seen[name.substr(0, name.find(" ("))]++);
  std::vector<size_t> order(names.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return turns[a] < turns[b]; });
  return order;
}

// Of checks with names: `run` each, until the time is up.
template <typename Check>
Status RunChecks(const std::vector<Check>& checks, const CheckUpPace& pace, DoctorReport* report,
                 const std::function<SelfTestResult(const Check&)>& run) {
  std::vector<std::string> names;
  for (const Check& check : checks) names.push_back(check.name);
  std::vector<size_t> order = SpreadOut(names);
  if (!pace.is_over) std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    if (pace.is_over && pace.is_over()) {
      report->n_left_out += order.size() - i;
      break;
    }
    report->tests.push_back(run(checks[order[i]]));
    KVRUN_RETURN_IF_ERROR(pace.tick());
  }
  return Status::Ok();
}

}  // namespace kvrun
