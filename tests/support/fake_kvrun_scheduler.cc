// The toy library's scheduler: each request has a toy session of its own. A step reads one prompt, and gives
// each answer that has begun a token. Of a model whose name has "breaks", a request fails after two tokens if
// its prompt has a "!".
#include <kvrun/scheduler.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/fake_kvrun.h"

namespace kvrun::fake {

struct ToySessionDestroyer {
  void operator()(kvrun_session* session) const { kvrun_session_destroy(session); }
};

struct ToyRequest {
  uint64_t id = 0;
  std::vector<int32_t> ids;
  kvrun_generate_options generate = {};
  std::vector<std::string> stop_texts;
  std::vector<const char*> stops;
  kvrun_request_events events = {};
  std::atomic<bool> is_cancelled = false;
  std::unique_ptr<kvrun_session, ToySessionDestroyer> session;
  std::unique_ptr<ToyAnswer> answer;
  uint32_t n_answered = 0;

  static int OnToken(void* user, uint32_t sequence, int32_t token, const char* text, size_t text_bytes) {
    auto* request = static_cast<ToyRequest*>(user);
    ++request->n_answered;
    return request->events.token(request->events.user, sequence, token, text, text_bytes);
  }
  static int OnRead(void* user, kvrun_phase, uint64_t done, uint64_t total) {
    auto* request = static_cast<ToyRequest*>(user);
    if (request->events.progress != nullptr) request->events.progress(request->events.user, done, total, 0);
    return 0;
  }
};

using ToyRequests = std::vector<std::unique_ptr<ToyRequest>>;

}  // namespace kvrun::fake

using kvrun::fake::Fail;
using kvrun::fake::ToyRequest;
using kvrun::fake::ToyRequests;

struct kvrun_scheduler {
  kvrun_engine* engine = nullptr;
  kvrun_scheduler_options options = {};
  std::vector<std::pair<std::string, std::string>> kv;
  std::mutex mutex;
  ToyRequests queue;
  ToyRequests running;
  uint64_t last_id = 0;
  uint64_t prompt_tokens = 0;
  uint64_t answer_tokens = 0;
};

namespace {

nlohmann::json StatisticsOf(const ToyRequest& request) {
  if (request.session == nullptr) return {{"cached_tokens", 0}, {"notes", nlohmann::json::array()}};
  char* text = nullptr;
  kvrun_session_stats_json(request.session.get(), &text);
  nlohmann::json stats = nlohmann::json::parse(text);
  kvrun_string_free(text);
  stats["notes"] = nlohmann::json::array();
  return stats;
}

void End(kvrun_scheduler* scheduler, const ToyRequest& request, kvrun_status status,
         const std::string& message) {
  const kvrun_generate_result none = {0, KVRUN_FINISH_CANCELLED};
  const kvrun_generate_result result = request.answer != nullptr ? request.answer->result() : none;
  const nlohmann::json stats = StatisticsOf(request);
  if (request.session != nullptr) scheduler->prompt_tokens += request.ids.size();
  scheduler->answer_tokens += result.n_tokens;
  request.events.end(request.events.user, status, message.c_str(), &result, stats.dump().c_str());
}

kvrun_status Read(kvrun_scheduler* scheduler, ToyRequest* request) {
  const kvrun_scheduler_options& given = scheduler->options;
  constexpr uint32_t kOpenEndedRoom = 1024;
  const uint32_t room = request->generate.max_tokens == 0 ? kOpenEndedRoom : request->generate.max_tokens;
  const auto needed = static_cast<uint32_t>(request->ids.size()) + room;
  std::vector<kvrun_option> kv;
  for (const auto& [name, value] : scheduler->kv) kv.push_back({name.c_str(), value.c_str()});
  kvrun_session_options options;
  kvrun_session_options_init(&options);
  options.n_ctx = std::min(std::max(needed, given.least_ctx == 0 ? 1024 : given.least_ctx), given.n_ctx);
  options.kv_options = kv.data();
  options.n_kv_options = kv.size();
  options.progress = ToyRequest::OnRead;
  options.progress_user = request;
  kvrun_session* session = nullptr;
  const kvrun_status status = kvrun_session_create(scheduler->engine, &options, &session);
  if (status != KVRUN_OK) return status;
  request->session.reset(session);
  return kvrun_session_feed(session, 0, request->ids.data(), request->ids.size());
}

bool Breaks(const kvrun_scheduler* scheduler, const ToyRequest& request) {
  return scheduler->engine->model->Is("breaks") && request.n_answered == 2 &&
         std::find(request.ids.begin(), request.ids.end(), '!') != request.ids.end();
}

// False: it has ended.
bool Step(kvrun_scheduler* scheduler, ToyRequest* request) {
  if (request->is_cancelled) {
    End(scheduler, *request, KVRUN_CANCELLED, "the request was cancelled");
    return false;
  }
  if (Breaks(scheduler, *request)) {
    End(scheduler, *request, KVRUN_IO_ERROR, "the disk is full");
    return false;
  }
  if (request->answer->Step()) return true;
  End(scheduler, *request, KVRUN_OK, "");
  return false;
}

void EndCancelled(kvrun_scheduler* scheduler) {
  ToyRequests dropped;
  {
    const std::lock_guard lock(scheduler->mutex);
    const auto first = std::stable_partition(scheduler->queue.begin(), scheduler->queue.end(),
                                             [](const auto& one) { return !one->is_cancelled; });
    std::move(first, scheduler->queue.end(), std::back_inserter(dropped));
    scheduler->queue.erase(first, scheduler->queue.end());
  }
  for (const auto& request : dropped) End(scheduler, *request, KVRUN_CANCELLED, "the request was cancelled");
}

void Admit(kvrun_scheduler* scheduler) {
  std::unique_ptr<ToyRequest> request;
  {
    const std::lock_guard lock(scheduler->mutex);
    if (scheduler->queue.empty() || scheduler->running.size() >= scheduler->options.n_parallel) return;
    request = std::move(scheduler->queue.front());
    scheduler->queue.erase(scheduler->queue.begin());
  }
  const kvrun_status status = Read(scheduler, request.get());
  if (status != KVRUN_OK) return End(scheduler, *request, status, kvrun_last_error());
  request->answer = kvrun::fake::BeginAnswer(request->session.get(), &request->generate, ToyRequest::OnToken,
                                             request.get());
  const std::lock_guard lock(scheduler->mutex);
  scheduler->running.push_back(std::move(request));
}

}  // namespace

void kvrun_scheduler_options_init(kvrun_scheduler_options* options) {
  *options = {};
  options->struct_size = sizeof(*options);
}

kvrun_status kvrun_scheduler_create(kvrun_engine* engine, const kvrun_scheduler_options* options,
                                    kvrun_scheduler** scheduler) {
  *scheduler = new kvrun_scheduler;
  (*scheduler)->engine = engine;
  (*scheduler)->options = *options;
  for (size_t i = 0; i < options->n_kv_options; ++i)
    (*scheduler)->kv.emplace_back(options->kv_options[i].name, options->kv_options[i].value);
  return KVRUN_OK;
}

void kvrun_scheduler_destroy(kvrun_scheduler* scheduler) {
  if (scheduler == nullptr) return;
  for (const ToyRequests* requests : {&scheduler->queue, &scheduler->running}) {
    for (const auto& request : *requests) End(scheduler, *request, KVRUN_CANCELLED, "it ends");
  }
  delete scheduler;
}

kvrun_status kvrun_scheduler_add(kvrun_scheduler* scheduler, const int32_t* ids, size_t count,
                                 const kvrun_generate_options* generate, const kvrun_request_events* events,
                                 uint64_t* id) {
  const kvrun_scheduler_options& given = scheduler->options;
  if (count + std::max(generate->max_tokens, 1U) > given.n_ctx)
    return Fail(KVRUN_CONTEXT_FULL, "prompt and answer are more than the context");
  auto request = std::make_unique<ToyRequest>();
  request->ids.assign(ids, ids + count);
  request->generate = *generate;
  for (size_t i = 0; i < generate->n_stop; ++i) request->stop_texts.emplace_back(generate->stop[i]);
  for (const std::string& text : request->stop_texts) request->stops.push_back(text.c_str());
  request->generate.stop = request->stops.data();
  request->events = *events;
  const std::lock_guard lock(scheduler->mutex);
  if (scheduler->queue.size() >= given.most_queued) return Fail(KVRUN_OUT_OF_MEMORY, "too many wait");
  *id = request->id = ++scheduler->last_id;
  scheduler->queue.push_back(std::move(request));
  return KVRUN_OK;
}

void kvrun_scheduler_cancel(kvrun_scheduler* scheduler, uint64_t id) {
  const std::lock_guard lock(scheduler->mutex);
  for (const ToyRequests* requests : {&scheduler->queue, &scheduler->running}) {
    for (const auto& request : *requests) {
      if (request->id == id) request->is_cancelled = true;
    }
  }
}

kvrun_status kvrun_scheduler_step(kvrun_scheduler* scheduler, uint32_t wait_ms, int* is_idle) {
  EndCancelled(scheduler);
  Admit(scheduler);
  const bool has_work = !scheduler->running.empty();
  if (is_idle != nullptr) *is_idle = has_work ? 0 : 1;
  if (!has_work) std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms / 10));
  for (size_t i = 0; i < scheduler->running.size();) {
    if (Step(scheduler, scheduler->running[i].get())) {
      ++i;
      continue;
    }
    const std::lock_guard lock(scheduler->mutex);
    scheduler->running.erase(scheduler->running.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return KVRUN_OK;
}

kvrun_status kvrun_scheduler_json(const kvrun_scheduler* scheduler, char** json) {
  const nlohmann::json report = {{"requests", nlohmann::json::array()},
                                 {"queued", 0},
                                 {"prompt_tokens", scheduler->prompt_tokens},
                                 {"answer_tokens", scheduler->answer_tokens},
                                 {"decode_tokens", scheduler->answer_tokens},
                                 {"prefill_ms", static_cast<double>(scheduler->prompt_tokens) * 10.0},
                                 {"decode_ms", static_cast<double>(scheduler->answer_tokens) * 100.0},
                                 {"kv", nlohmann::json::array()},
                                 {"stored", nlohmann::json::array()}};
  return kvrun::fake::HandOut(report.dump(), json);
}
