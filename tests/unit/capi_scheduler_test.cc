// The scheduler in the C API: requests from options to events, and what is refused. Device and forward pass
// are fakes.
#include <gtest/gtest.h>
#include <kvrun/scheduler.h>

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/capi_fixture.h"

namespace kvrun {
namespace {

using testing::CapiTest;
using testing::LastError;
using testing::ParseAndFree;

// What was told of a request.
struct Told {
  std::vector<uint64_t> progress;
  std::vector<int32_t> ids;
  size_t n_logprobs = 0;
  std::vector<kvrun_status> ends;
  kvrun_generate_result result = {};
  nlohmann::json stats;
};

kvrun_request_events EventsInto(Told* told) {
  kvrun_request_events events = {};
  events.struct_size = sizeof(events);
  events.user = told;
  events.progress = [](void* user, uint64_t done, uint64_t, uint64_t) {
    static_cast<Told*>(user)->progress.push_back(done);
  };
  events.token = [](void* user, uint32_t sequence, int32_t token, const char*, size_t) {
    EXPECT_EQ(sequence, 0U);
    if (token >= 0) static_cast<Told*>(user)->ids.push_back(token);
    return 0;
  };
  events.end = [](void* user, kvrun_status status, const char* message, const kvrun_generate_result* result,
                  const char* stats) {
    auto* told = static_cast<Told*>(user);
    EXPECT_EQ(status == KVRUN_OK, std::string(message).empty());
    told->ends.push_back(status);
    told->result = *result;
    told->stats = nlohmann::json::parse(stats);
  };
  return events;
}

class CapiScheduler : public CapiTest {
 protected:
  void SetUp() override {
    CapiTest::SetUp();
    kvrun_scheduler_options options;
    kvrun_scheduler_options_init(&options);
    options.folder = "";
    options.n_ctx = 200;
    options.most_queued = 3;
    ASSERT_EQ(kvrun_scheduler_create(engine_, &options, &scheduler_), KVRUN_OK) << LastError();
  }
  void TearDown() override {
    kvrun_scheduler_destroy(scheduler_);
    CapiTest::TearDown();
  }

  kvrun_status Add(const std::vector<int32_t>& ids, const kvrun_generate_options& options, Told* told,
                   uint64_t* request = nullptr) {
    const kvrun_request_events events = EventsInto(told);
    return kvrun_scheduler_add(scheduler_, ids.data(), ids.size(), &options, &events, request);
  }
  static kvrun_generate_options OfTokens(uint32_t n) {
    kvrun_generate_options options;
    kvrun_generate_options_init(&options);
    options.max_tokens = n;
    options.ignore_end = 1;
    return options;
  }
  void RunAll() {
    for (int is_idle = 0; is_idle == 0;)
      ASSERT_EQ(kvrun_scheduler_step(scheduler_, 0, &is_idle), KVRUN_OK) << LastError();
  }

  kvrun_scheduler* scheduler_ = nullptr;
};

TEST_F(CapiScheduler, TellsOfEachRequest) {
  Told one;
  Told two;
  kvrun_generate_options options = OfTokens(7);
  uint64_t first = 0;
  ASSERT_EQ(Add({5, 6, 7}, options, &one, &first), KVRUN_OK) << LastError();
  EXPECT_GT(first, 0U);
  options.n_logprobs = 3;
  options.logprobs = [](void* user, uint32_t, kvrun_token_logprob, const kvrun_token_logprob*, size_t n) {
    EXPECT_EQ(n, 3U);
    ++static_cast<Told*>(user)->n_logprobs;
  };
  options.logprobs_user = &two;
  const kvrun_logit_bias bias = {42, 100.0F};
  options.logit_bias = &bias;
  options.n_logit_bias = 1;
  ASSERT_EQ(Add({9, 8}, options, &two), KVRUN_OK) << LastError();
  RunAll();
  for (const Told* told : {&one, &two}) {
    EXPECT_EQ(told->ends, std::vector<kvrun_status>{KVRUN_OK});
    EXPECT_EQ(told->ids.size(), 7U);
    EXPECT_EQ(told->result.n_tokens, 7U);
    EXPECT_EQ(told->result.finish, KVRUN_FINISH_LENGTH);
    EXPECT_EQ(told->stats["answer_tokens"], 7);
    EXPECT_GT(told->stats["memory"]["total"], 0);
    EXPECT_TRUE(told->stats["details"].is_array());
    EXPECT_FALSE(told->stats.contains("kv")) << "all of it is in memory";
    EXPECT_FALSE(told->progress.empty());
  }
  EXPECT_EQ(two.n_logprobs, 7U);
  EXPECT_EQ(two.ids, std::vector<int32_t>(7, 42)) << "it was made the likeliest";
  char* json = nullptr;
  ASSERT_EQ(kvrun_scheduler_json(scheduler_, &json), KVRUN_OK);
  const nlohmann::json report = ParseAndFree(json);
  EXPECT_EQ(report["ended"], 2);
  EXPECT_EQ(report["answer_tokens"], 14);
  EXPECT_EQ(report["queued"], 0);
  EXPECT_TRUE(report["requests"].empty());
}

TEST_F(CapiScheduler, CancelsOnce) {
  Told told;
  uint64_t request = 0;
  ASSERT_EQ(Add({5, 6, 7}, OfTokens(150), &told, &request), KVRUN_OK) << LastError();
  for (int i = 0; i < 4; ++i) ASSERT_EQ(kvrun_scheduler_step(scheduler_, 0, nullptr), KVRUN_OK);
  kvrun_scheduler_cancel(scheduler_, request);
  kvrun_scheduler_cancel(scheduler_, request);
  RunAll();
  EXPECT_EQ(told.ends, std::vector<kvrun_status>{KVRUN_CANCELLED});
  kvrun_scheduler_cancel(scheduler_, request);
  kvrun_scheduler_cancel(nullptr, request);
  // Those that are under way end with it.
  Told last;
  ASSERT_EQ(Add({5, 6, 7}, OfTokens(150), &last), KVRUN_OK) << LastError();
  kvrun_scheduler_destroy(scheduler_);
  scheduler_ = nullptr;
  EXPECT_EQ(last.ends, std::vector<kvrun_status>{KVRUN_CANCELLED});
}

TEST_F(CapiScheduler, RefusesWhatCannotBe) {
  Told told;
  EXPECT_EQ(Add(std::vector<int32_t>(190, 5), OfTokens(11), &told), KVRUN_CONTEXT_FULL);
  EXPECT_NE(LastError().find("200"), std::string::npos) << LastError();
  EXPECT_EQ(Add({}, OfTokens(1), &told), KVRUN_INVALID_ARGUMENT);
  const kvrun_request_events events = EventsInto(&told);
  const int32_t id = 5;
  EXPECT_EQ(kvrun_scheduler_add(nullptr, &id, 1, nullptr, &events, nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_scheduler_add(scheduler_, nullptr, 1, nullptr, &events, nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_scheduler_add(scheduler_, &id, 1, nullptr, nullptr, nullptr), KVRUN_INVALID_ARGUMENT);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Add({5, 6}, OfTokens(2), &told), KVRUN_OK) << LastError();
  EXPECT_EQ(Add({5, 6}, OfTokens(2), &told), KVRUN_OUT_OF_MEMORY);
  RunAll();
  EXPECT_EQ(told.ends.size(), 3U);
  Told wrong;
  EXPECT_EQ(Add({5, 999999}, OfTokens(2), &wrong), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("999999"), std::string::npos) << LastError();
  RunAll();
  EXPECT_TRUE(wrong.ends.empty());
  EXPECT_EQ(kvrun_scheduler_step(nullptr, 0, nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_scheduler_create(nullptr, nullptr, &scheduler_), KVRUN_INVALID_ARGUMENT);
  char* json = nullptr;
  EXPECT_EQ(kvrun_scheduler_json(nullptr, &json), KVRUN_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvrun
