// The KV thread under schedules that are drawn: the test plays the engine's thread, a thread of it the
// device. Lists are posted and completed early or late, steps are given up, reads and writes of the store
// fail, and so do waits and signals of the device. Whatever happens, every layer is signalled once and in
// order, the step ends with the first error, and the thread ends.
//
// A schedule that fails, or does not end, is printed; KVRUN_SEED=<its seed> KVRUN_HISTORIES=1 runs it
// again.
#include "runtime/kv/serve/kv_thread.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/base/random.h"
#include "runtime/device/host/host_device.h"
#include "runtime/engine/measure/random_kv.h"
#include "runtime/kv/planner/plan_kv.h"
#include "runtime/kv/serve/kv_stores.h"
#include "runtime/kv/serve/record_cache.h"
#include "tests/support/fake_device.h"
#include "tests/support/mischievous_file.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/seeds.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kServedLayers = 5;
constexpr uint32_t kServedSequences = 2;
constexpr uint32_t kServedContext = 128;
constexpr uint64_t kServedSchedules = 60;
constexpr KvModelShape kServedModel = {
    .n_layers = kServedLayers, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .n_embd = 32};

// As long as it takes, or nothing.
void Dawdle(Random& random) {
  switch (random.Below(5)) {
    case 0: std::this_thread::yield(); break;
    case 1: std::this_thread::sleep_for(std::chrono::microseconds(random.Below(120))); break;
    default: break;
  }
}

// Ends the program, with a message, where a test does not end.
class Watchdog {
 public:
  explicit Watchdog(std::string message)
      : message_(std::move(message)), thread_([this] {
          std::unique_lock lock(mutex_);
          if (ended_.wait_for(lock, std::chrono::seconds(60), [this] { return has_ended_; })) return;
          std::fprintf(stderr, "does not end: %s\n", message_.c_str());
          std::abort();
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }

 private:
  std::string message_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;
};

// Buffers are the CPU's; lists are what the test says, carried out one after another by a thread.
class ScriptedDevice : public FakeDevice {
 public:
  using Work = std::function<void(Random& random)>;

  ScriptedDevice(Device& buffers, uint64_t seed)
      : buffers_(buffers), random_(seed), thread_([this] { Main(); }) {}
  ~ScriptedDevice() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Result<std::unique_ptr<Buffer>> CreateBuffer(uint64_t size_bytes, BufferUse use,
                                               std::string_view part) override {
    return buffers_.CreateBuffer(size_bytes, use, part);
  }
  Result<std::unique_ptr<Buffer>> CreateConstants(std::span<const std::byte> bytes,
                                                  std::string_view part) override {
    return buffers_.CreateConstants(bytes, part);
  }

  // In place of Submit: answers the list's value.
  uint64_t Enqueue(uint64_t wait_host, Work work) {
    const std::lock_guard lock(mutex_);
    lists_.push_back({++last_value_, wait_host, std::move(work)});
    values_.push_back(last_value_);
    changed_.notify_all();
    return last_value_;
  }
  // Waits until all lists are complete.
  void Drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return completed_ == last_value_; });
  }
  bool is_drained() {
    const std::lock_guard lock(mutex_);
    return completed_ == last_value_;
  }

  uint64_t ReserveHostValues(uint32_t count) override {
    const std::lock_guard lock(mutex_);
    first_signal_ = last_host_value_ + 1;
    last_host_value_ += count;
    signalled_.clear();
    errors_.clear();
    values_.clear();
    n_waits_ = 0;
    return first_signal_;
  }
  Status SignalHost(uint64_t value) override {
    const std::lock_guard lock(mutex_);
    host_value_ = std::max(host_value_, value);
    changed_.notify_all();
    signalled_.push_back(value);
    const uint64_t layer = value - first_signal_;  // whose choice list `layer` ends with
    const bool was_chosen = layer < values_.size() && completed_ >= values_[layer];
    if (errors_.empty() && waits_for_choices() && !was_chosen) ADD_FAILURE() << "served before it was chosen";
    if (signalled_.size() - 1 != fails_signal) return Status::Ok();
    return errors_.emplace_back(StatusCode::kDevice, fmt::format("signal {} has failed", value));
  }
  Status Wait(uint64_t value) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return completed_ >= value; });
    if (n_waits_++ != fails_wait) return Status::Ok();
    return errors_.emplace_back(StatusCode::kDevice, fmt::format("wait for {} has failed", value));
  }
  Result<uint64_t> Completed() override {
    const std::lock_guard lock(mutex_);
    return completed_;
  }

  // Of the step whose values were reserved last.
  std::vector<uint64_t> signalled() {
    const std::lock_guard lock(mutex_);
    return signalled_;
  }
  std::vector<Status> errors() {
    const std::lock_guard lock(mutex_);
    return errors_;
  }

  // Set between steps. Which of them: counted from 0.
  size_t fails_signal = SIZE_MAX;
  size_t fails_wait = SIZE_MAX;
  // Nothing else has failed. Asked by the KV thread.
  std::function<bool()> waits_for_choices;

 private:
  struct List {
    uint64_t value;
    uint64_t wait_host;
    Work work;
  };

  void Main() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !lists_.empty(); });
      if (stopping_) return;
      const List list = lists_.front();
      lists_.pop_front();
      changed_.wait(lock, [&] { return stopping_ || host_value_ >= list.wait_host; });
      if (stopping_) return;
      lock.unlock();
      Dawdle(random_);
      list.work(random_);
      lock.lock();
      completed_ = list.value;
      changed_.notify_all();
    }
  }

  Device& buffers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<List> lists_;
  uint64_t last_value_ = 0;
  uint64_t completed_ = 0;
  uint64_t first_signal_ = 1;
  uint64_t last_host_value_ = 0;
  uint64_t host_value_ = 0;
  std::vector<uint64_t> signalled_;  // what follows is of the step
  std::vector<Status> errors_;
  std::vector<uint64_t> values_;  // of lists
  size_t n_waits_ = 0;
  bool stopping_ = false;
  Random random_;  // the thread's
  std::thread thread_;
};

struct ServedCase {
  const char* name;
  const char* method;
  uint32_t lookahead;
};

class KvThreadSchedules : public ::testing::TestWithParam<ServedCase> {
 protected:
  void SetUp() override { buffers_ = OrDie(host::HostDevice::Create({.n_threads = 1, .note = {}})); }

  KvPlan Plan() const {
    KvOptions options;
    options.method = GetParam().method;
    options.k_type = options.v_type = KvType::kF32;
    options.window_entries = 8;
    const KvMethod method = OrDie(FindKvMethod(options.method));
    if (method.counts_groups()) options.select_entries = 24;
    if (method.has_clusters()) options.cluster_entries = 8;
    if (!method.has_clusters()) options.group_tokens = 4;
    KvPlan plan = OrDie(PlanKv(options, kServedModel, kServedContext, kServedSequences, 4096));
    plan.method.lookahead = GetParam().lookahead;
    return plan;
  }

  std::unique_ptr<host::HostDevice> buffers_;
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(
    Methods, KvThreadSchedules,
    ::testing::Values(ServedCase{"flexgen", "flexgen", 1}, ServedCase{"flexgenAtOnce", "flexgen", 0},
                      ServedCase{"random", "random", 1}, ServedCase{"randomAtOnce", "random", 0},
                      ServedCase{"dynakv", "dynakv", 1}),
    [](const ::testing::TestParamInfo<ServedCase>& source) { return source.param.name; });

// A cache and its thread, and what a schedule does with them.
class Schedule {
 public:
  Schedule(Device& buffers, const KvPlan& plan, const std::string& folder, uint64_t seed)
      : random_(seed), device_(buffers, seed + 1), lengths_(kServedSequences) {
    auto file = std::make_unique<MischievousFile>(
        OrDie(CreateBlockFile({.folder = folder, .direct = DirectIo::kOff, .allow_tmpfs = true})), mischief_);
    cache_ = OrDie(RecordCache::Create(device_, plan, kServedLayers,
                                       OrDie(MakeKvStores(plan, kServedLayers, std::move(file))), nullptr));
    for (uint32_t sequence = 0; sequence < kServedSequences; ++sequence) Fill(sequence);
    thread_.emplace(device_, kServedLayers, cache_->plan().method.lookahead);
  }
  ~Schedule() {
    thread_.reset();
    device_.Drain();
  }

  void Run() {
    const uint32_t n_steps = random_.Below(7);
    for (uint32_t i = 0; i < n_steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(fmt::format("step {}", i));
      RunStep(i + 1 == n_steps && Chance(3));
    }
    thread_.reset();
    device_.Drain();
    if (n_steps > 0) ExpectSignals();
  }

  // What a test cannot do without.
  uint32_t n_ok() const { return n_ok_; }
  uint32_t n_errors() const { return n_errors_; }

 private:
  bool Chance(uint32_t one_of) { return random_.Below(one_of) == 0; }
  uint32_t lookahead() const { return cache_->plan().method.lookahead; }
  uint32_t n_lists() const { return 1 + lookahead() + kServedLayers; }

  void Fill(uint32_t sequence) {
    lengths_[sequence] = 20 + random_.Below(80);
    RunOrDie(FillRandomly(cache_->prompts(), kServedLayers, sequence, lengths_[sequence]));
  }

  // A step as OffloadedForwardPass has it. `is_last`: nobody waits for its end.
  void RunStep(bool is_last) {
    KvStep step;
    for (uint32_t sequence = 0; sequence < kServedSequences; ++sequence) {
      if (lengths_[sequence] + 1 >= kServedContext) Fill(sequence);
      if (Chance(6)) lengths_[sequence] -= random_.Below(10);  // taken back
      if (sequence == 0 || Chance(2)) step.spans.push_back({sequence, lengths_[sequence]});
    }
    Status begun = cache_->steps().BeginDecode();
    if (begun.ok()) begun = cache_->steps().BeginStep(step);
    if (!begun.ok()) {  // a write has failed before
      EXPECT_TRUE(may_be_lost_) << begun.message();
      ComputeAgain();
      RunOrDie(cache_->steps().BeginDecode());
      for (KvSpan& span : step.spans) span.first_position = lengths_[span.sequence];
      RunOrDie(cache_->steps().BeginStep(step));
    }
    const bool may_have_lost = may_be_lost_;
    DrawTrouble();
    const uint32_t n_posted = Chance(4) ? random_.Below(n_lists()) : n_lists();
    device_.waits_for_choices = [this, is_sure = n_posted == n_lists() && !may_have_lost] {
      return is_sure && mischief_.n_failed == 0;
    };
    first_ready_ = device_.ReserveHostValues(kServedLayers);
    StepRecords* const records = &cache_->steps();
    thread_->Begin(first_ready_, std::span(&records, 1));
    for (uint32_t layer = 0; layer < kServedLayers; ++layer) {
      EXPECT_EQ(thread_->ReadyValue(layer), first_ready_ + layer);
    }
    Post(n_posted);
    if (is_last) return;
    Dawdle(random_);
    const Status status = thread_->End();
    ExpectSignals();
    ExpectFirstError(status, n_posted < n_lists() ? std::optional(n_posted) : std::nullopt, may_have_lost);
    if (status.ok() && cache_->steps().maintains()) {
      EXPECT_TRUE(device_.is_drained()) << "maintained too early";
    }
    device_.Drain();  // whose lists nobody holds back any more
    if (status.ok()) {
      cache_->steps().EndStep();
      for (const KvSpan& span : step.spans) ++lengths_[span.sequence];
    }
    (status.ok() ? n_ok_ : n_errors_) += 1;
    if (mischief_.n_failed > 0 && mischief_.fails == IoKind::kWrite) may_be_lost_ = true;
    // What could not be maintained has to be computed again.
    if (!status.ok() && cache_->steps().maintains()) may_be_lost_ = true;
    mischief_ = {};
    device_.fails_signal = device_.fails_wait = SIZE_MAX;
    if (!status.ok() && may_be_lost_) ComputeAgain();
  }

  void DrawTrouble() {
    switch (random_.Below(9)) {
      case 0:
      case 1: mischief_ = {.fails = IoKind::kRead, .n_good = random_.Below(1U << random_.Below(5))}; break;
      case 2: mischief_ = {.fails = IoKind::kWrite, .n_good = random_.Below(4)}; break;
      case 3: device_.fails_wait = random_.Below(kServedLayers); break;
      case 4: device_.fails_signal = random_.Below(kServedLayers); break;
      default: break;
    }
  }

  // Of a list, what comes before the choice that it ends with.
  void Post(uint32_t n_posted) {
    for (uint32_t list = 0; list < n_posted; ++list) {
      Dawdle(random_);
      const bool carries_out = list > lookahead();
      const uint32_t layer = carries_out ? list - 1 - lookahead() : 0;
      const uint64_t wait = carries_out ? first_ready_ + layer : 0;
      const uint64_t value = device_.Enqueue(wait, [this, list, layer, carries_out](Random& random) {
        if (carries_out) CarryOut(layer, random);
        if (list < kServedLayers) Choose(list, random);
      });
      Dawdle(random_);
      thread_->Post(list, value);
    }
    if (n_posted == n_lists()) return;
    if (Chance(3)) {  // when the thread waits for the list that does not come
      device_.Drain();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    thread_->Abandon();
  }

  // The device: what it attends to must stay while it does.
  void CarryOut(uint32_t layer, Random& random) const {
    SlotAttentionArgs args;
    cache_->steps().AddSources(layer, &args);
    const auto hash = [&args] {
      uint64_t sum = 0;
      for (const SlotSource& source : args.used()) {
        for (Buffer* const buffer : {source.slots, const_cast<Buffer*>(source.table)}) {
          for (const std::byte byte : buffer->host()) sum = sum * 31 + std::to_integer<uint64_t>(byte);
        }
      }
      return sum;
    };
    const uint64_t before = hash();
    Dawdle(random);
    EXPECT_EQ(hash(), before) << "layer " << layer << " was written to while it was computed";
  }

  // The device: where it chooses, it names a few.
  void Choose(uint32_t layer, Random& random) const {
    if (cache_->steps().selector() == nullptr) return;
    Buffer* const chosen = cache_->steps().selector()->chosen(layer);
    if (chosen == nullptr) return;
    const KvPlan& plan = cache_->plan();
    const uint64_t words = plan.choice_list(layer).words();
    auto* const lists = reinterpret_cast<uint32_t*>(chosen->host().data());
    const uint32_t most = plan.choice.n_chosen / plan.records_per_extent();
    for (uint32_t i = 0; i < plan.n_streams; ++i) {
      uint32_t* const list = lists + i * words;
      list[0] = std::min(most, random.Below(3));
      for (uint32_t k = 0; k < list[0]; ++k) list[1 + k] = 2 * k + random.Below(2);
    }
  }

  void ExpectSignals() {
    std::vector<uint64_t> expected;
    for (uint32_t layer = 0; layer < kServedLayers; ++layer) expected.push_back(first_ready_ + layer);
    EXPECT_EQ(device_.signalled(), expected);
  }

  // After an error nothing is read, nor waited for: what failed is the first of what failed, or the step was
  // given up before.
  void ExpectFirstError(const Status& status, std::optional<uint32_t> abandoned_at, bool may_have_lost) {
    const std::vector<Status> errors = device_.errors();
    const bool reads_failed = mischief_.n_failed > 0 && mischief_.fails == IoKind::kRead;
    const bool may_be_of_writes =
        may_have_lost || (mischief_.n_failed > 0 && mischief_.fails == IoKind::kWrite);
    const bool was_given_up = abandoned_at && status.message() == "the step was given up";
    if (may_be_of_writes && (status.code() == StatusCode::kIo || status.code() == StatusCode::kCorrupt))
      return;
    if (reads_failed) {
      EXPECT_EQ(status.code(), StatusCode::kIo) << status.message();
    } else if (!errors.empty()) {
      if (!was_given_up) {
        EXPECT_EQ(status.message(), errors.front().message());
      }
    } else if (abandoned_at && *abandoned_at < kServedLayers) {
      EXPECT_TRUE(was_given_up) << status.message();
    } else {
      EXPECT_TRUE(status.ok() || was_given_up) << status.message();
    }
  }

  void ComputeAgain() {
    for (uint32_t sequence = 0; sequence < kServedSequences; ++sequence) Fill(sequence);
    may_be_lost_ = false;
  }

  Random random_;
  Mischief mischief_;
  ScriptedDevice device_;
  std::vector<uint32_t> lengths_;
  std::unique_ptr<RecordCache> cache_;
  std::optional<KvThread> thread_;
  uint64_t first_ready_ = 0;
  bool may_be_lost_ = false;
  uint32_t n_ok_ = 0;
  uint32_t n_errors_ = 0;
};

TEST_P(KvThreadSchedules, EveryLayerIsSignalledOnce) {
  const Seeds seeds = SeedsHere(kServedSchedules);
  const KvPlan plan = Plan();
  uint32_t n_ok = 0;
  uint32_t n_errors = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end() && !HasFailure(); ++seed) {
    const std::string name = fmt::format("KVRUN_SEED={} KVRUN_HISTORIES=1, {}", seed, GetParam().name);
    SCOPED_TRACE(name);
    const Watchdog watchdog(name);
    Schedule schedule(*buffers_, plan, folder_.Path("kv"), seed);
    schedule.Run();
    n_ok += schedule.n_ok();
    n_errors += schedule.n_errors();
  }
  if (SeedsHere(0).n > 0) return;  // somebody has asked for others
  EXPECT_GT(n_ok, kServedSchedules);
  EXPECT_GT(n_errors, kServedSchedules / 4);
}

}  // namespace
}  // namespace kvrun::testing
