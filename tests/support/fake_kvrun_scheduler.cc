// The toy library's scheduler: it answers one request after another, with how many tokens its prompt has.
#include <kvrun/scheduler.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "tests/support/fake_kvrun.h"

namespace kvrun::fake {

struct FakeRequest {
  uint64_t id = 0;
  size_t n_tokens = 0;
  kvrun_request_events events = {};
};

}  // namespace kvrun::fake

using kvrun::fake::FakeRequest;

struct kvrun_scheduler {
  std::mutex mutex;
  std::deque<FakeRequest> requests;
  uint64_t last_id = 0;
};

void kvrun_scheduler_options_init(kvrun_scheduler_options* options) {
  *options = {};
  options->struct_size = sizeof(*options);
}

kvrun_status kvrun_scheduler_create(kvrun_engine*, const kvrun_scheduler_options*,
                                    kvrun_scheduler** scheduler) {
  *scheduler = new kvrun_scheduler;
  return KVRUN_OK;
}

void kvrun_scheduler_destroy(kvrun_scheduler* scheduler) { delete scheduler; }

kvrun_status kvrun_scheduler_add(kvrun_scheduler* scheduler, const int32_t*, size_t count,
                                 const kvrun_generate_options*, const kvrun_request_events* events,
                                 uint64_t* request) {
  const std::lock_guard lock(scheduler->mutex);
  scheduler->requests.push_back({++scheduler->last_id, count, *events});
  *request = scheduler->last_id;
  return KVRUN_OK;
}

void kvrun_scheduler_cancel(kvrun_scheduler*, uint64_t) {}

kvrun_status kvrun_scheduler_step(kvrun_scheduler* scheduler, uint32_t wait_ms, int* is_idle) {
  FakeRequest request;
  bool has_work = false;
  {
    const std::lock_guard lock(scheduler->mutex);
    has_work = !scheduler->requests.empty();
    if (has_work) {
      request = scheduler->requests.front();
      scheduler->requests.pop_front();
    }
  }
  if (is_idle != nullptr) *is_idle = has_work ? 0 : 1;
  if (!has_work) {
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms / 10));
    return KVRUN_OK;
  }
  const kvrun_request_events& events = request.events;
  if (events.progress != nullptr) events.progress(events.user, request.n_tokens, request.n_tokens, 0);
  const std::string text = std::to_string(request.n_tokens) + " tokens";
  events.token(events.user, 0, 5, text.c_str(), text.size());
  const kvrun_generate_result result{1, KVRUN_FINISH_END};
  events.end(events.user, KVRUN_OK, "", &result, R"({"cached_tokens": 0, "notes": []})");
  return KVRUN_OK;
}

kvrun_status kvrun_scheduler_json(const kvrun_scheduler*, char** json) {
  return kvrun::fake::HandOut(R"({"requests": [], "queued": 0, "kv": [], "stored": []})", json);
}
