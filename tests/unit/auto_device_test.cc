// What "auto" opens, measures, keeps and says. The CPU stands for the GPU where something is computed.
#include "runtime/engine/device/auto_device.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "platform/base/units.h"
#include "runtime/engine/device/device_times_file.h"
#include "runtime/engine/device/device_trial.h"
#include "runtime/model/synthetic_model.h"
#include "tests/support/fake_device.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/tiny_shape.h"

namespace kvrun {
namespace {

using testing::OrDie;
using OpenedNames = std::vector<std::string>;

constexpr SyntheticShape kTiny = testing::TinyShape(3);
constexpr const char* kGpu = "1";  // the candidate's name to open it by
const Status kGone(StatusCode::kDevice, "it is gone");

// Devices by name: those that compute are the CPU with one thread.
class AutoDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = OrDie(MakeSyntheticModel(kTiny));
    candidates_ = {.gpu = GpuCandidate{.device = kGpu,
                                       .name = "Some GPU",
                                       .driver = "some 1.0",
                                       .runs_on_cpu = false,
                                       .has_unified_memory = true},
                   .note = {},
                   .cpu_name = "Some CPU",
                   .n_threads = 1};
    source_.find = [this](const OpenDeviceOptions&) -> Result<AutoCandidates> { return candidates_; };
    source_.open = [this](const OpenDeviceOptions& options) -> Result<std::unique_ptr<Device>> {
      opened_.push_back(options.device);
      if (fails_.contains(options.device)) return fails_.at(options.device);
      if (options.device == fake_) return std::unique_ptr<Device>(new testing::FakeDevice());
      return OpenDevice({.device = "host", .n_threads = 1});
    };
    source_.times_path = folder_.Path("times.json");
    source_.available_bytes = [this] { return available_bytes_; };
  }

  // What a run before has found.
  void Know(DeviceTimes cpu, DeviceTimes gpu) {
    const TimesKey key = {.gpu = "Some GPU",
                          .driver = "some 1.0",
                          .cpu = "Some CPU",
                          .n_threads = 1,
                          .exact_activations = false,
                          .model = OrDie(model_->Fingerprint()),
                          .kvrun = "1"};
    testing::RunOrDie(WriteTimes(*source_.times_path, {.key = key, .cpu = cpu, .gpu = gpu}));
  }

  Result<OpenedDevice> Open(const std::string& device = "auto",
                            const std::function<bool()>& is_cancelled = {}) {
    opened_.clear();
    return OpenDeviceFor(*model_, {.device = device}, "1", is_cancelled, source_);
  }
  std::string Notes(const OpenedDevice& opened) {
    std::string all;
    for (const std::string& note : opened.notes) all += note + "\n";
    for (const std::string& detail : opened.details) all += detail + "\n";
    return all;
  }

  const TemporaryFolder folder_;
  std::unique_ptr<Model> model_;
  AutoCandidates candidates_;
  DeviceSource source_;
  std::map<std::string, Status> fails_;
  std::string fake_ = "none";
  OpenedNames opened_;
  std::optional<uint64_t> available_bytes_ = 64 * kGiB;
};

TEST_F(AutoDevice, MeasuresBothAndKeepsWhatItFound) {
  const OpenedDevice first = OrDie(Open());
  ASSERT_EQ(opened_.size(), 3U);
  EXPECT_EQ(opened_[0], kGpu);
  EXPECT_EQ(opened_[1], "host");
  ASSERT_EQ(first.notes.size(), 1U);
  EXPECT_TRUE(first.notes[0].starts_with("auto: ")) << first.notes[0];
  EXPECT_NE(first.notes[0].find("Some GPU"), std::string::npos) << first.notes[0];
  const auto entries = OrDie(ReadTimes(*source_.times_path));
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].key.driver, "some 1.0");

  const std::string decided = opened_[2];
  const OpenedDevice second = OrDie(Open("Auto"));
  EXPECT_EQ(opened_, OpenedNames{decided}) << "nothing was measured";
  EXPECT_TRUE(second.notes.empty()) << "it was said when it was measured: " << Notes(second);
  EXPECT_EQ(second.details, first.notes);

  candidates_.gpu->driver = "some 1.1";
  OrDie(Open());
  EXPECT_EQ(opened_.size(), 3U) << "another driver";
  EXPECT_EQ(OrDie(ReadTimes(*source_.times_path)).size(), 2U);
}

TEST_F(AutoDevice, ADeviceThatIsNamedIsOpened) {
  const OpenedDevice opened = OrDie(Open("name"));
  EXPECT_EQ(opened_, OpenedNames{"name"});
  EXPECT_TRUE(opened.notes.empty());
  EXPECT_FALSE(opened.can_be_host);
}

TEST_F(AutoDevice, WithoutAnotherDeviceNothingIsMeasured) {
  candidates_.gpu.reset();
  OrDie(Open());
  EXPECT_EQ(opened_, OpenedNames{"auto"}) << "which says why";
  candidates_.note = "it has no queue";
  const OpenedDevice opened = OrDie(Open());
  EXPECT_EQ(opened_, OpenedNames{"host"});
  EXPECT_EQ(opened.notes, std::vector<std::string>{"it has no queue"});
  EXPECT_EQ(ReadTimes(*source_.times_path).status().code(), StatusCode::kNotFound);
}

TEST_F(AutoDevice, AGpuThatCannotBeOpenedOrFailsInTheTrialLeavesTheCpu) {
  fails_ = {{kGpu, kGone}};
  EXPECT_NE(Notes(OrDie(Open())).find("Some GPU cannot be used: it is gone"), std::string::npos);
  EXPECT_EQ(opened_, (OpenedNames{kGpu, "host"}));
  fails_.clear();
  fake_ = kGpu;
  EXPECT_NE(Notes(OrDie(Open())).find("the fake device computes nothing"), std::string::npos);
  EXPECT_EQ(opened_, (OpenedNames{kGpu, "host"}));
  EXPECT_EQ(ReadTimes(*source_.times_path).status().code(), StatusCode::kNotFound) << "it may be there later";
}

TEST_F(AutoDevice, OnePhaseOnEachIsOneDevice) {
  Know({.prefill_us = 10, .decode_us = 10}, {.prefill_us = 1, .decode_us = 100});
  const OpenedDevice opened = OrDie(Open());
  EXPECT_EQ(opened_, OpenedNames{"1+host"});
  EXPECT_TRUE(opened.can_be_host);
  EXPECT_TRUE(Notes(opened).starts_with("auto: decoding on the CPU (100000 token/s; ")) << Notes(opened);
  // Where that cannot be: the better one, and both are said.
  fails_ = {{"1+host", kGone}};
  const OpenedDevice one = OrDie(Open());
  EXPECT_EQ(opened_, (OpenedNames{"1+host", "host"}));
  ASSERT_EQ(one.notes.size(), 1U);
  EXPECT_NE(one.notes[0].find("it is gone"), std::string::npos);
  ASSERT_EQ(one.details.size(), 1U);
  EXPECT_NE(one.details[0].find("computing on the CPU"), std::string::npos);
}

TEST_F(AutoDevice, AGpuThatIsNotThereAnyMoreLeavesTheCpu) {
  Know({.prefill_us = 10, .decode_us = 10}, {.prefill_us = 1, .decode_us = 1});
  EXPECT_TRUE(OrDie(Open()).can_be_host);
  EXPECT_EQ(opened_, OpenedNames{kGpu});
  fails_ = {{kGpu, kGone}};
  EXPECT_NE(Notes(OrDie(Open())).find("it is gone"), std::string::npos);
  EXPECT_EQ(opened_, (OpenedNames{kGpu, "host"}));
}

TEST_F(AutoDevice, FilesThatAreDamagedOrCannotBeWrittenCostANote) {
  source_.times_path = folder_.Write("damaged.json", "{");
  const OpenedDevice opened = OrDie(Open());
  EXPECT_EQ(opened_.size(), 3U);
  EXPECT_NE(Notes(opened).find("measured again"), std::string::npos);
  EXPECT_TRUE(OrDie(Open()).notes.empty()) << "it was replaced";
  source_.times_path = folder_.Write("file", "") + "/times.json";
  EXPECT_NE(Notes(OrDie(Open())).find("cannot be kept"), std::string::npos);
  source_.times_path.reset();
  EXPECT_EQ(OrDie(Open()).notes.size(), 1U);
}

TEST_F(AutoDevice, MeasuresAgainWhereItIsAskedTo) {
  Know({.prefill_us = 1e6, .decode_us = 1e6}, {.prefill_us = 1e6, .decode_us = 1e6});
  opened_.clear();
  OrDie(OpenDeviceFor(*model_, {.device = "auto", .remeasure = true}, "1", {}, source_));
  ASSERT_EQ(opened_.size(), 3U);
  const auto entries = OrDie(ReadTimes(*source_.times_path));
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_LT(entries[0].cpu.decode_us, 1e6);
  OrDie(Open());
  EXPECT_EQ(opened_.size(), 1U) << "once";
}

TEST_F(AutoDevice, MeasuresAgainWhereRatesSeenAreFarOff) {
  Know({.prefill_us = 10, .decode_us = 10}, {.prefill_us = 100, .decode_us = 100});
  const OpenedDevice busy = OrDie(Open());
  ASSERT_TRUE(busy.kept);
  EXPECT_EQ(busy.kept->taken, (DeviceTimes{.prefill_us = 10, .decode_us = 10}));
  KeepSeenTimes(*busy.kept, {.prefill_us = 0, .decode_us = 0});
  KeepSeenTimes(*busy.kept, {.prefill_us = 15, .decode_us = 7});
  OrDie(Open());
  EXPECT_EQ(opened_, OpenedNames{"host"}) << "nothing, or not far off";
  KeepSeenTimes(*busy.kept, {.prefill_us = 0, .decode_us = 4});
  const OpenedDevice again = OrDie(Open());
  EXPECT_EQ(opened_.size(), 3U);
  EXPECT_NE(Notes(again).find("devices are measured again: decoding ran at 2.5e+05 token/s, where 1e+05"),
            std::string::npos)
      << Notes(again);
  // The same ratio again is no surprise: the trial is not the model. It is kept with the new times.
  ASSERT_TRUE(again.kept);
  EXPECT_EQ(again.kept->entry.usual, (DeviceTimes{.prefill_us = 1.0, .decode_us = 0.4}));
  KeepSeenTimes(*again.kept, {.prefill_us = 0, .decode_us = 0.4 * again.kept->taken.decode_us});
  OrDie(Open());
  EXPECT_EQ(opened_.size(), 1U);
  // Nor is it for good.
  KeepSeenTimes(*again.kept, {.prefill_us = 0, .decode_us = again.kept->taken.decode_us});
  OrDie(Open());
  EXPECT_EQ(opened_.size(), 3U);
}

TEST_F(AutoDevice, DriversThatAreLeftOutAreSaid) {
  candidates_.gpu.reset();
  candidates_.left_out = "the Vulkan driver x is left out";
  EXPECT_EQ(OrDie(Open()).notes, std::vector<std::string>{candidates_.left_out});
}

// Nothing that is opened says again which drivers are left out.
TEST_F(AutoDevice, DriversThatAreLeftOutAreSaidOnce) {
  candidates_.left_out = "the Vulkan driver x is left out";
  const auto open = source_.open;
  size_t n_saying = 0;
  source_.open = [&](const OpenDeviceOptions& options) {
    n_saying += options.names_left_out ? 1 : 0;
    return open(options);
  };
  fails_ = {{kGpu, kGone}};
  OrDie(Open());
  EXPECT_EQ(opened_, (OpenedNames{kGpu, "host"}));
  Know({.prefill_us = 10, .decode_us = 10}, {.prefill_us = 1, .decode_us = 100});
  OrDie(Open());
  EXPECT_EQ(opened_, OpenedNames{"1+host"});
  candidates_.gpu.reset();
  OrDie(Open());
  EXPECT_EQ(n_saying, 0U);
  OrDie(Open("name"));
  EXPECT_EQ(n_saying, 1U);
}

TEST_F(AutoDevice, WhatDoesNotFitIsNotMeasured) {
  available_bytes_ = 150 * kMiB;
  const OpenedDevice opened = OrDie(Open());
  EXPECT_EQ(opened_, OpenedNames{"host"});
  ASSERT_EQ(opened.notes.size(), 1U);
  EXPECT_NE(opened.notes[0].find("auto: computing on the CPU: to measure Some GPU takes 192"),
            std::string::npos)
      << opened.notes[0];
  EXPECT_NE(opened.notes[0].find("150.0 MiB are free"), std::string::npos) << opened.notes[0];
  EXPECT_EQ(ReadTimes(*source_.times_path).status().code(), StatusCode::kNotFound) << "it may fit later";
  // Times that are known cost nothing.
  Know({.prefill_us = 10, .decode_us = 10}, {.prefill_us = 1, .decode_us = 1});
  OrDie(Open());
  EXPECT_EQ(opened_, OpenedNames{kGpu});
  std::filesystem::remove(*source_.times_path);
  // Of a GPU with memory of its own the weights do not count.
  fails_ = {{kGpu, kGone}};
  const OpenedNames tried = {kGpu, "host"};
  available_bytes_ = 192 * kMiB;
  OrDie(Open());
  EXPECT_EQ(opened_, OpenedNames{"host"});
  candidates_.gpu->has_unified_memory = false;
  OrDie(Open());
  EXPECT_EQ(opened_, tried);
  candidates_.gpu->runs_on_cpu = true;
  OrDie(Open());
  EXPECT_EQ(opened_, OpenedNames{"host"});
  available_bytes_.reset();
  OrDie(Open());
  EXPECT_EQ(opened_, tried) << "what is free is not known";
}

TEST_F(AutoDevice, WithHardlyAnyMemoryNoDriverIsOpened) {
  available_bytes_ = 10 * kMiB;
  source_.find = [](const OpenDeviceOptions&) -> Result<AutoCandidates> {
    ADD_FAILURE() << "it looked";
    return kGone;
  };
  const OpenedDevice opened = OrDie(Open());
  EXPECT_EQ(opened_, OpenedNames{"host"});
  EXPECT_NE(Notes(opened).find("10.0 MiB are free"), std::string::npos) << Notes(opened);
}

TEST_F(AutoDevice, BothAreMeasuredApart) {
  std::string tried;
  source_.try_on = [&](const OpenDeviceOptions& options, const std::string&, const DeviceWork& work,
                       const std::function<bool()>& is_cancelled) -> Result<std::string> {
    tried += options.device;
    KVRUN_ASSIGN_OR_RETURN(const auto device, source_.open(options));
    return work(*device, is_cancelled);
  };
  OrDie(Open());
  EXPECT_EQ(tried, std::string(kGpu) + "host");
  EXPECT_EQ(OrDie(ReadTimes(*source_.times_path)).size(), 1U);
  candidates_.gpu->driver = "some 2.0";
  source_.try_on = [](const OpenDeviceOptions&, const std::string&, const DeviceWork&,
                      const std::function<bool()>&) -> Result<std::string> { return kGone; };
  EXPECT_NE(Notes(OrDie(Open())).find("Some GPU cannot be used: it is gone"), std::string::npos);
  EXPECT_EQ(opened_, OpenedNames{"host"});
  // A trial of the CPU that is killed is no reason not to compute.
  source_.try_on = [](const OpenDeviceOptions& options, const std::string&, const DeviceWork&,
                      const std::function<bool()>&) -> Result<std::string> {
    if (options.device == "host") return kGone;
    return TimesToText({.prefill_us = 1.0, .decode_us = 1.0});
  };
  EXPECT_NE(Notes(OrDie(Open())).find("computing on the CPU, though it could not be measured: it is gone"),
            std::string::npos);
  EXPECT_EQ(opened_, OpenedNames{"host"});
  EXPECT_EQ(OrDie(ReadTimes(*source_.times_path)).size(), 1U) << "nothing new";
}

TEST_F(AutoDevice, CanBeCancelledWhileItMeasures) {
  size_t calls = 0;
  const auto opened = Open("auto", [&] { return ++calls == 30; });
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(calls, 30U);
  EXPECT_EQ(ReadTimes(*source_.times_path).status().code(), StatusCode::kNotFound);
}

TEST(DeviceTrial, ItsWeightsAreThoseThatItLoads) {
  const TemporaryFolder folder;
  for (const bool is_tied : {true, false}) {
    SyntheticShape shape = kTiny;
    shape.has_tied_output = is_tied;
    const auto model = OrDie(MakeSyntheticModel(shape, 3));
    uint64_t tensor_bytes = 0;
    for (const GgufTensor& tensor : model->file->tensors()) tensor_bytes += tensor.size_bytes;
    // All of so small a model, but for norms.
    EXPECT_LE(TrialBytes(*model), tensor_bytes);
    EXPECT_GE(TrialBytes(*model), tensor_bytes / 10 * 9);
  }
}

uint64_t BytesInUse(const Device& device) {
  uint64_t bytes = 0;
  for (const Device::MemoryPart& part : device.MemoryInUse()) bytes += part.bytes;
  return bytes;
}

TEST(DeviceTrial, AnyNumberOfLayersIsTimedAndAllIsGivenBack) {
  const TemporaryFolder folder;
  const auto device = OrDie(OpenDevice({.device = "host", .n_threads = 1}));
  const uint64_t before = BytesInUse(*device);
  for (const bool is_tied : {true, false}) {
    for (const uint32_t n_layers : {1U, 2U, 5U}) {
      SyntheticShape shape = kTiny;
      shape.has_tied_output = is_tied;
      const auto model = OrDie(MakeSyntheticModel(shape, n_layers));
      const DeviceTimes times =
          OrDie(MeasureDevice(*model, *device, {.budget_seconds = 0.05, .is_cancelled = {}}));
      EXPECT_GT(times.prefill_us, 0.0);
      EXPECT_GT(times.decode_us, 0.0);
      EXPECT_EQ(BytesInUse(*device), before);
    }
  }
}

// 16 times the layers, 300 times the vocabulary. What else the machine does adds to either time and halves a
// ratio easily, so one try of some counts; chance alone would hardly give three times.
TEST(DeviceTrial, MoreLayersAndAWiderVocabularyTakeLonger) {
  const TemporaryFolder folder;
  const auto device = OrDie(OpenDevice({.device = "host", .n_threads = 1}));
  SyntheticShape shape = kTiny;
  shape.n_embd = 256;
  shape.n_ff = 512;
  const auto measure = [&](uint32_t n_layers, uint32_t n_vocab) {
    shape.n_vocab = n_vocab;
    const auto model = OrDie(MakeSyntheticModel(shape, n_layers));
    return OrDie(MeasureDevice(*model, *device, {}));
  };
  std::string measured;
  for (int i = 0; i < 5; ++i) {
    const DeviceTimes small = measure(4, 300);
    const DeviceTimes deep = measure(64, 300);
    const DeviceTimes wide = measure(4, 100'000);  // more than the trial computes
    if (deep.decode_us > 3 * small.decode_us && deep.prefill_us > 3 * small.prefill_us &&
        wide.decode_us > 3 * small.decode_us) {
      return;
    }
    measured += fmt::format("; prefill {} {}, decode {} {} {} us", small.prefill_us, deep.prefill_us,
                            small.decode_us, deep.decode_us, wide.decode_us);
  }
  FAIL() << "small, deep, wide" << measured;
}

}  // namespace
}  // namespace kvrun
