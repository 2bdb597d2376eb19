// What a scheduler keeps: which session a prompt goes on with, and what is on the disk whatever happens.
// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include "runtime/schedule/stored_prompts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/session/session_files.h"
#include "runtime/engine/session/session_list.h"
#include "runtime/schedule/scheduler.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/session_fixture.h"

namespace kvrun {
namespace {

using testing::FakeForwardPass;
using testing::FakePassLog;
using testing::FakePassOptions;
using testing::GreedyAfter;
using testing::Ids;
using testing::OrDie;
using testing::SomeIds;

constexpr uint32_t kLongContext = 8192;

Ids Concat(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// As the engine does it, over a fake forward pass: a new session is on the disk from the start.
Result<std::unique_ptr<Session>> OpenFake(const SessionOptions& options, const std::string& model,
                                          std::mutex* device, FakePassLog* log) {
  FakePassOptions pass;
  pass.n_ctx = kLongContext;
  pass.keeps = true;
  pass.log = log;
  Session::Parts parts;
  parts.n_ctx = kLongContext;
  parts.forward_pass = std::make_unique<FakeForwardPass>(pass);
  parts.device_mutex = device;
  parts.progress = options.progress;
  SessionFiles* files = nullptr;
  if (!options.path.empty()) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<SessionFiles> opened, options.read_only
                                                                     ? SessionFiles::OpenToRead(options.path)
                                                                     : SessionFiles::Open(options.path));
    files = opened.get();
    SessionIdentity identity;
    identity.model = model;
    identity.n_ctx = identity.room_tokens = kLongContext;
    files->SetIdentity(identity, nullptr);
    parts.kept = std::move(opened);
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Create(std::move(parts)));
  if (files == nullptr) return session;
  KVRUN_RETURN_IF_ERROR(files->identity() ? files->Load(*session) : session->SavePoint());
  return session;
}

class StoredPromptsTest : public ::testing::Test {
 protected:
  StoredPromptsOptions Options(uint64_t keep_bytes = 1ULL << 40) const {
    return {.folder = folder_, .key = nullptr, .keep_bytes = keep_bytes, .model = "m"};
  }
  std::unique_ptr<StoredPrompts> Open(uint64_t keep_bytes = 1ULL << 40) const {
    return OrDie(StoredPrompts::Open(Options(keep_bytes)));
  }
  std::string PathOf(const std::string& name) const { return folder_ + "/" + name + ".session"; }
  // A session as another process may have left it.
  void Write(const std::string& path, const Ids& tokens, const std::string& model = "m") {
    SessionOptions options;
    options.path = path;
    const std::unique_ptr<Session> session = OrDie(OpenFake(options, model, &device_, &log_));
    ASSERT_TRUE(session->Truncate(0, 0).ok());
    ASSERT_TRUE(session->Feed(0, tokens).ok());
    ASSERT_TRUE(session->SavePoint().ok());
  }
  std::set<std::string> OnDisk() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().extension() == ".session") names.insert(entry.path().stem());
    }
    return names;
  }
  static std::set<std::string> Listed(const std::vector<StoredPrompts::Stored>& all) {
    std::set<std::string> names;
    for (const StoredPrompts::Stored& one : all) names.insert(one.name);
    return names;
  }

  TemporaryFolder temporary_;
  std::string folder_ = temporary_.Path("sessions");
  std::mutex device_;
  FakePassLog log_;

  void SetUp() override { std::filesystem::create_directory(folder_); }
};

TEST_F(StoredPromptsTest, APromptGoesOnWithTheLongestThatItBeginsLike) {
  Write(PathOf("serve-short"), SomeIds(100));
  Write(PathOf("serve-long"), SomeIds(300));
  Write(PathOf("serve-other"), SomeIds(300, 2));
  Write(PathOf("serve-model"), SomeIds(400), "another");
  Write(PathOf("document-1"), SomeIds(3000, 4));
  const auto prompts = Open();
  const auto long_place = prompts->Take(SomeIds(400));
  ASSERT_TRUE(long_place);
  EXPECT_EQ(long_place->path, PathOf("serve-long"));
  EXPECT_EQ(long_place->n_common, 300U);
  EXPECT_FALSE(long_place->is_new || long_place->is_read_only);
  // In use, and little is lost: the next one does without.
  EXPECT_EQ(prompts->Take(SomeIds(500))->path, PathOf("serve-short"));
  EXPECT_TRUE(prompts->Take(SomeIds(600))->is_new);
  // Others' sessions are read, by any number at once.
  for (int i = 0; i < 2; ++i) {
    const auto place = prompts->Take(Concat(SomeIds(3000, 4), SomeIds(9)));
    EXPECT_EQ(place->path, PathOf("document-1"));
    EXPECT_TRUE(place->is_read_only);
  }
  EXPECT_TRUE(prompts->Take(SomeIds(63, 2))->is_new);  // too little in common
}

TEST_F(StoredPromptsTest, WhatIsWorthItIsWaitedFor) {
  const auto prompts = Open();
  const Ids ids = SomeIds(1500);
  const auto first = prompts->Take(ids);
  EXPECT_TRUE(first && first->is_new);
  EXPECT_FALSE(prompts->Take(ids));
  EXPECT_TRUE(prompts->Take(SomeIds(1500, 3))->is_new);
  Write(first->path, Concat(ids, SomeIds(20, 8)));
  prompts->PutBack(*first, Concat(ids, SomeIds(20, 8)));
  const auto second = prompts->Take(ids);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->path, first->path);
  EXPECT_EQ(second->n_common, 1500U);
}

// A request that ends before it has changed anything must not take the conversation with it.
TEST_F(StoredPromptsTest, WhatCameToNothingIsAsItWas) {
  Write(PathOf("serve-a"), SomeIds(300));
  Write(PathOf("document-b"), SomeIds(2000, 1));
  const auto prompts = Open();
  for (const Ids& ids : {SomeIds(310), SomeIds(2010, 1)}) {
    const auto place = prompts->Take(ids);
    ASSERT_TRUE(place && !place->is_new);
    prompts->PutBack(*place, {});
    EXPECT_EQ(Listed(prompts->all()), OnDisk());
    EXPECT_EQ(prompts->Take(ids)->path, place->path);
  }
}

TEST_F(StoredPromptsTest, WhatHoldsNothingGoes) {
  const auto empty = PathOf("serve-empty");
  Write(empty, {});
  Write(PathOf("thesis"), {});  // a person's
  const auto prompts = Open();
  EXPECT_EQ(OnDisk(), (std::set<std::string>{"thesis"}));
  const auto place = prompts->Take(SomeIds(20));
  ASSERT_TRUE(place && place->is_new);
  Write(place->path, {});
  prompts->PutBack(*place, {});
  EXPECT_EQ(OnDisk(), (std::set<std::string>{"thesis"}));
  EXPECT_TRUE(prompts->all().empty());
  // The last save point counts, where a later one has failed.
  const auto saved = prompts->Take(SomeIds(20));
  Write(saved->path, SomeIds(20));
  prompts->PutBack(*saved, {});
  EXPECT_EQ(Listed(prompts->all()), (std::set<std::string>{std::filesystem::path(saved->path).stem()}));
}

TEST_F(StoredPromptsTest, WhatCannotBeOpenedIsNotTriedAgain) {
  Write(PathOf("serve-a"), SomeIds(300));
  const auto prompts = Open();
  const auto place = prompts->Take(SomeIds(310));
  ASSERT_EQ(place->path, PathOf("serve-a"));
  prompts->GiveUp(*place);
  EXPECT_TRUE(prompts->Take(SomeIds(310))->is_new);
  EXPECT_EQ(Listed(prompts->all()), OnDisk());
}

TEST_F(StoredPromptsTest, TheDiskHasRoomForAnother) {
  for (const int i : {0, 1, 2}) Write(PathOf("serve-" + std::to_string(i)), SomeIds(200, i));
  const uint64_t each = SessionSizeBytes(PathOf("serve-0"));
  uint64_t free_bytes = each / 2;
  StoredPromptsOptions options = Options();
  options.free_bytes = [&free_bytes] { return free_bytes; };
  const auto prompts = OrDie(StoredPrompts::Open(options));
  EXPECT_EQ(OnDisk().size(), 2U);
  // Somebody else fills the disk: before another is made there is room, but not all goes for it.
  free_bytes = 0;
  const auto place = prompts->Take(SomeIds(200, 5));
  EXPECT_TRUE(place->is_new);
  prompts->MakeRoom();
  EXPECT_EQ(OnDisk().size(), 1U);
  free_bytes = each * 9;
  Write(place->path, SomeIds(200, 5));
  prompts->PutBack(*place, SomeIds(200, 5));
  EXPECT_EQ(OnDisk().size(), 2U);
}

TEST_F(StoredPromptsTest, TheLeastRecentlyUsedGo) {
  for (const int i : {0, 1, 2}) Write(PathOf("serve-" + std::to_string(i)), SomeIds(200, i));
  Write(PathOf("thesis"), SomeIds(200, 9));
  const uint64_t each = SessionSizeBytes(PathOf("serve-0"));
  const auto prompts = Open(each * 5 / 2);
  EXPECT_EQ(OnDisk().size(), 3U);
  EXPECT_TRUE(OnDisk().contains("thesis"));
  // Of what is in use nothing goes; what somebody else has removed counts no more.
  const auto used = prompts->Take(SomeIds(210, 2));
  ASSERT_FALSE(used->is_new);
  for (const std::string& name : OnDisk()) {
    if (name != "thesis" && PathOf(name) != used->path) {
      ASSERT_TRUE(RemoveSession(PathOf(name)).ok());
    }
  }
  for (const int i : {5, 6}) {
    const auto place = prompts->Take(SomeIds(200, i));
    Write(place->path, SomeIds(200, i));
    prompts->PutBack(*place, SomeIds(200, i));
    EXPECT_TRUE(std::filesystem::exists(place->path)) << i;
    EXPECT_TRUE(std::filesystem::exists(used->path)) << i;
  }
  EXPECT_EQ(OnDisk().size(), 3U);
  EXPECT_EQ(Listed(prompts->all()), OnDisk());
}

// ---- With the scheduler.

struct Heard {
  Ids ids;
  uint64_t cached = 0;
  std::vector<RequestOutcome> ends;
  std::function<void(uint64_t done)> on_progress;
};

class Hearer final : public RequestEvents {
 public:
  explicit Hearer(Heard* heard) : heard_(heard) {}
  void OnProgress(uint64_t done, uint64_t /*total*/, uint64_t cached) override {
    heard_->cached = cached;
    if (heard_->on_progress) heard_->on_progress(done);
  }
  bool OnToken(const GeneratedToken& token) override {
    if (token.id >= 0) heard_->ids.push_back(token.id);
    return false;
  }
  void OnEnd(const RequestOutcome& outcome) override { heard_->ends.push_back(outcome); }

 private:
  Heard* heard_;
};

class KeepingSchedulerTest : public StoredPromptsTest {
 protected:
  std::unique_ptr<Scheduler> Make(uint32_t n_parallel = 2) {
    SchedulerOptions options;
    options.n_parallel = n_parallel;
    options.n_ctx = kLongContext;
    options.slice = std::chrono::milliseconds(0);
    options.stored = Options();
    return OrDie(Scheduler::Create(std::move(options), [this](const SessionOptions& session) {
      if (fails_to_open_) return Result<std::unique_ptr<Session>>(Status(StatusCode::kDevice, "no device"));
      return OpenFake(session, "m", &device_, &log_);
    }));
  }
  RequestId Add(Scheduler* scheduler, const std::string& name, Ids ids, uint32_t n) {
    Request request{.ids = std::move(ids), .generate = {}};
    request.generate.max_tokens = n;
    return OrDie(scheduler->Add(std::move(request), std::make_unique<Hearer>(&heard_[name])));
  }
  static void RunAll(Scheduler* scheduler) {
    while (scheduler->StepOnce()) {
    }
  }
  static uint32_t Listed(const Scheduler& scheduler) {
    return static_cast<uint32_t>(scheduler.report().stored.size());
  }

  std::map<std::string, Heard> heard_;
  bool fails_to_open_ = false;
};

TEST_F(KeepingSchedulerTest, AConversationGoesOnAlsoAfterARestart) {
  Ids talk = SomeIds(200);
  uint32_t n_known = 0;
  for (const char* name : {"1", "2", "3"}) {
    const auto scheduler = Make();
    Add(scheduler.get(), name, talk, 10);
    RunAll(scheduler.get());
    EXPECT_EQ(heard_[name].ids, GreedyAfter(talk, 10));
    EXPECT_EQ(heard_[name].cached, n_known);
    EXPECT_EQ(Listed(*scheduler), 1U);
    n_known = static_cast<uint32_t>(talk.size()) + 9;  // the last token of an answer is not computed
    talk = Concat(Concat(talk, heard_[name].ids), SomeIds(30, 7));
  }
}

TEST_F(KeepingSchedulerTest, WhatCameToNothingLeavesNothing) {
  const auto scheduler = Make();
  Add(scheduler.get(), "foreign", Concat(SomeIds(100, 5), {1 << 30}), 3);
  RunAll(scheduler.get());
  EXPECT_EQ(heard_["foreign"].ends.at(0).status.code(), StatusCode::kInvalidArgument);
  RequestId id = 0;
  heard_["early"].on_progress = [&](uint64_t) { scheduler->Cancel(id); };
  id = Add(scheduler.get(), "early", SomeIds(140), 3);
  RunAll(scheduler.get());
  fails_to_open_ = true;
  Add(scheduler.get(), "unopened", SomeIds(150, 2), 3);
  RunAll(scheduler.get());
  fails_to_open_ = false;
  Add(scheduler.get(), "of no use", SomeIds(50, 3), 13);
  RunAll(scheduler.get());
  EXPECT_EQ(heard_["of no use"].ids, GreedyAfter(SomeIds(50, 3), 13));
  EXPECT_TRUE(OnDisk().empty());
  EXPECT_EQ(Listed(*scheduler), 0U);
}

TEST_F(KeepingSchedulerTest, AFailureLeavesTheConversation) {
  const auto scheduler = Make();
  Add(scheduler.get(), "1", SomeIds(150), 5);
  RunAll(scheduler.get());
  const Ids talk = Concat(Concat(SomeIds(150), heard_["1"].ids), SomeIds(20, 3));
  fails_to_open_ = true;
  Add(scheduler.get(), "unopened", talk, 5);
  RunAll(scheduler.get());
  EXPECT_EQ(heard_["unopened"].ends.at(0).status.code(), StatusCode::kDevice);
  fails_to_open_ = false;
  Add(scheduler.get(), "2", talk, 5);
  RunAll(scheduler.get());
  EXPECT_EQ(heard_["2"].cached, 154U);
  EXPECT_EQ(OnDisk().size(), 1U);
  EXPECT_EQ(Listed(*scheduler), 1U);
}

// Prompts that begin alike wait for one another, and each is answered as if it were alone.
TEST_F(KeepingSchedulerTest, TheSamePromptAtOnce) {
  const auto scheduler = Make(4);
  for (const char* name : {"1", "2", "3", "4", "5"}) Add(scheduler.get(), name, SomeIds(1500), 12);
  Add(scheduler.get(), "other", SomeIds(90, 3), 12);
  RunAll(scheduler.get());
  for (const char* name : {"1", "2", "3", "4", "5"})
    EXPECT_EQ(heard_[name].ids, GreedyAfter(SomeIds(1500), 12));
  EXPECT_EQ(heard_["other"].ids, GreedyAfter(SomeIds(90, 3), 12));
  EXPECT_EQ(heard_["5"].cached, 1498U);
  EXPECT_EQ(OnDisk().size(), 2U);
  EXPECT_EQ(Listed(*scheduler), 2U);
}

// A prompt that waits for its place is not overtaken for ever by those that share it.
TEST_F(KeepingSchedulerTest, WhoWaitsIsNotOvertakenForEver) {
  const Ids document = SomeIds(2000);
  Write(PathOf("serve-talk"), Concat(document, SomeIds(3000, 5)));
  const auto scheduler = Make(4);
  int n_readers = 0;
  const auto add_reader = [&] {
    Add(scheduler.get(), "reader" + std::to_string(n_readers), Concat(document, SomeIds(40, 20 + n_readers)),
        40);
    ++n_readers;
  };
  for (int i = 0; i < 3; ++i) add_reader();
  for (int i = 0; i < 30; ++i) scheduler->StepOnce();
  Add(scheduler.get(), "talk", Concat(Concat(document, SomeIds(3000, 5)), SomeIds(10)), 5);
  while (heard_["talk"].ends.empty() && n_readers < 200) {
    if (scheduler->report().n_requests + 4 > static_cast<uint64_t>(n_readers)) add_reader();
    for (int i = 0; i < 5; ++i) scheduler->StepOnce();
  }
  EXPECT_LT(n_readers, 50);
  EXPECT_EQ(heard_["talk"].cached, 5000U);
  RunAll(scheduler.get());
}

}  // namespace
}  // namespace kvrun
