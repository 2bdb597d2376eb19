// The CPU's self-tests pass with every instruction set, and notice operations that miscalculate.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "runtime/device/check_up.h"
#include "runtime/device/host/instruction_sets.h"
#include "runtime/device/host/self_test.h"
#include "runtime/device/open_device.h"

namespace kvrun::host {
namespace {

std::unique_ptr<HostDevice> Open(bool exact_activations, const std::string& spoiled_operation) {
  auto device = HostDevice::Create(
      {.exact_activations = exact_activations, .note = {}, .spoiled_operation = spoiled_operation});
  EXPECT_TRUE(device.ok()) << device.status().message();
  return std::move(device).value();
}

// "encode_records, decode_records (f16 of f32 entries)": two operations.
std::set<std::string> OperationsOf(const std::string& check_name) {
  std::set<std::string> operations;
  const std::string names = check_name.substr(0, check_name.find(" ("));
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(", ", begin), names.size());
    operations.insert(names.substr(begin, end - begin));
    begin = end + 2;
  }
  return operations;
}

TEST(HostDoctor, PassesWithEveryInstructionSet) {
  size_t calls = 0;
  size_t planned = 0;
  const auto reports = RunDoctor("host", [&](size_t done, size_t total) {
    EXPECT_EQ(done, ++calls);
    planned = total;
    return false;
  });
  ASSERT_TRUE(reports.ok()) << reports.status().message();
  ASSERT_EQ(reports->size(), 1U);
  const DoctorReport& report = reports->at(0);
  EXPECT_EQ(report.kind, "cpu");
  EXPECT_EQ(report.driver, "kvrun host");
  const size_t n_sets = InstructionSets().size();
  EXPECT_EQ(report.tests.size(), n_sets * (1 + HostChecks().size()));
  EXPECT_EQ(calls, report.tests.size());
  EXPECT_EQ(planned, report.tests.size());
  std::set<std::string> names;
  for (const SelfTestResult& test : report.tests) {
    EXPECT_TRUE(test.passed) << test.name << ": " << test.detail;
    EXPECT_TRUE(names.insert(test.name).second) << test.name << " is there twice";
  }
  for (const InstructionSet& set : InstructionSets()) {
    const auto of_set = [&](const SelfTestResult& test) { return test.name.starts_with(set.name + ": "); };
    ASSERT_EQ(std::count_if(report.tests.begin(), report.tests.end(), of_set), report.tests.size() / n_sets);
    const auto opening = std::find_if(report.tests.begin(), report.tests.end(), of_set);
    EXPECT_NE(opening->detail.find(set.name), std::string::npos) << "ran with " << opening->detail;
  }
  EXPECT_EQ(InstructionSetName(), InstructionSets().front().name) << "the best is not in use again";
}

// One value is wrong, and exactly those tests fail that name the operation.
TEST(HostDoctor, AWrongOperationIsCaughtByTheTestsThatNameIt) {
  const auto checks = HostChecks();
  std::set<std::string> operations;
  for (const HostCheck& check : checks) operations.merge(OperationsOf(check.name));
  EXPECT_EQ(
      operations,
      (std::set<std::string>{
          "accumulate_gram", "attend",         "attend_slots",     "attend_window",     "attention_mass",
          "choose_experts",  "copy",           "decode_records",   "delta_rule",        "embed",
          "encode_records",  "expert_matmul",  "finish_attention", "gated_norm",        "gather_rows",
          "geglu",           "matmul",         "matvec",           "project_keys",      "rms_norm",
          "rope_and_encode", "rope_and_store", "score_and_select", "short_convolution", "sigmoid_gate",
          "sum_weights",     "swiglu"}));
  for (const std::string& operation : operations) {
    const auto exact = Open(true, operation);
    const auto rounded = Open(false, operation);
    for (const HostCheck& check : checks) {
      const Result<std::string> outcome = check.run(check.exact_activations ? *exact : *rounded);
      EXPECT_NE(outcome.ok(), OperationsOf(check.name).contains(operation))
          << operation << " is wrong, and " << check.name << ": "
          << (outcome.ok() ? *outcome : outcome.status().message());
    }
  }
}

TEST(HostDoctor, CanBeCancelled) {
  size_t calls = 0;
  const auto reports = RunDoctor("host", [&](size_t done, size_t total) {
    EXPECT_LT(done, total);
    return ++calls == 2;
  });
  ASSERT_FALSE(reports.ok());
  EXPECT_EQ(reports.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(calls, 2U);
  EXPECT_EQ(InstructionSetName(), InstructionSets().front().name) << "the best is not in use again";
}

// One of each operation comes first.
TEST(HostDoctor, WhatThereIsNoTimeForIsCounted) {
  size_t planned = 0;
  const auto reports = RunDoctor(
      "host",
      [&](size_t, size_t total) {
        planned = total;
        return false;
      },
      1e-9);
  ASSERT_TRUE(reports.ok()) << reports.status().message();
  EXPECT_EQ(reports->at(0).tests.size(), 0U);
  EXPECT_EQ(planned, 0U) << "nothing was run";
  EXPECT_EQ(reports->at(0).n_left_out, InstructionSets().size() * (1 + HostChecks().size()));
  const auto all = RunDoctor("host", {}, 1e9);
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all->at(0).n_left_out, 0U);
  EXPECT_EQ(all->at(0).tests.size(), reports->at(0).n_left_out);
}

TEST(CheckUp, OneOfEachOperationComesFirst) {
  const std::vector<std::string> names = {"a (1)", "a (2)", "b (1)", "a (3)", "b (2)", "c"};
  EXPECT_EQ(SpreadOut(names), (std::vector<size_t>{0, 2, 5, 1, 4, 3}));
  struct Check {
    std::string name;
  };
  std::vector<Check> checks;
  for (const std::string& name : names) checks.push_back({name});
  const auto run = [&](size_t n_before_the_end) {
    DoctorReport report;
    const CheckUpPace pace{.tick = [] { return Status::Ok(); },
                           .is_over = [&] { return report.tests.size() == n_before_the_end; }};
    EXPECT_TRUE(RunChecks<Check>(checks, pace, &report, [](const Check& check) {
                  return SelfTestResult{check.name, true, ""};
                }).ok());
    return report;
  };
  const DoctorReport part = run(4);
  EXPECT_EQ(part.n_left_out, 2U);
  ASSERT_EQ(part.tests.size(), 4U);
  EXPECT_EQ(part.tests[2].name, "c");
  EXPECT_EQ(part.tests[3].name, "a (2)");
  EXPECT_EQ(run(9).n_left_out, 0U);
}

TEST(HostDoctor, APairIsRefused) {
  const auto reports = RunDoctor("vulkan+host", {});
  ASSERT_FALSE(reports.ok());
  EXPECT_EQ(reports.status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace kvrun::host
