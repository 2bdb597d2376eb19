#include "runtime/schedule/scheduler.h"

#include <kvrun/scheduler.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/units.h"
#include "runtime/capi/border.h"
#include "runtime/capi/generate_call.h"
#include "runtime/capi/handles.h"
#include "runtime/capi/kv_info.h"
#include "runtime/capi/session_options.h"
#include "runtime/capi/session_stats.h"
#include "runtime/capi/status_code.h"
#include "runtime/engine/session/context_length.h"
#include "runtime/engine/session/session_folder.h"

using kvrun::Result;
using kvrun::Scheduler;
using kvrun::SchedulerOptions;
using kvrun::Status;
using kvrun::StatusCode;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;
using kvrun::capi::Json;

struct kvrun_scheduler {
  const kvrun::Engine* engine = nullptr;
  std::unique_ptr<Scheduler> scheduler;
};

namespace {

constexpr uint32_t kUsualParallel = 4;
constexpr uint32_t kUsualQueued = 64;
constexpr uint64_t kUsualKeepBytes = 20 * kvrun::kGiB;
constexpr uint32_t kOnly = 0;  // sequence of a request

class CEvents final : public kvrun::RequestEvents {
 public:
  CEvents(const kvrun_request_events& events, const kvrun::capi::GenerateCall& call,
          const kvrun::Device& device)
      : events_(events),
        device_(device),
        token_(call.BindToken(events.token, events.user, std::span(&kOnly, 1))) {}

  void OnProgress(uint64_t done, uint64_t total, uint64_t cached) override {
    if (events_.progress != nullptr) events_.progress(events_.user, done, total, cached);
  }
  bool OnToken(const kvrun::GeneratedToken& token) override { return token_ && token_(token); }
  void OnEnd(const kvrun::RequestOutcome& outcome) override {
    if (events_.end == nullptr) return;
    const kvrun_generate_result result{outcome.result.n_tokens,
                                       kvrun::capi::FinishToC(outcome.result.finish)};
    Json stats = kvrun::capi::SpeedInfo(outcome.stats);
    stats["memory"] = kvrun::capi::MemoryOf(device_);
    stats["notes"] = outcome.notes;
    stats["details"] = outcome.details;
    if (outcome.kv) {
      stats["kv"] =
          kvrun::capi::KvReportInfo(*outcome.kv, outcome.stats.decode_tokens, /*with_layers=*/false);
    }
    events_.end(events_.user, kvrun::capi::ToC(outcome.status.code()), outcome.status.message().c_str(),
                &result, kvrun::capi::ToText(stats).c_str());
  }

 private:
  const kvrun_request_events events_;
  const kvrun::Device& device_;
  const kvrun::TokenCallback token_;
};

Result<SchedulerOptions> ReadSchedulerOptions(const kvrun_scheduler_options* given, kvrun_engine* engine) {
  kvrun_scheduler_options read;
  kvrun_scheduler_options_init(&read);
  KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(given, "kvrun_scheduler_options", &read));
  kvrun_session_options session;
  kvrun_session_options_init(&session);
  session.kv_options = read.kv_options;
  session.n_kv_options = read.n_kv_options;
  const bool keeps = read.folder == nullptr || *read.folder != '\0';
  if (keeps) {
    session.session = "serve-any";  // makes the user's folder where it is missing
    session.session_key_path = read.session_key_path;
  }
  KVRUN_ASSIGN_OR_RETURN(kvrun::SessionOptions of_session, kvrun::capi::ReadSessionOptions(&session));
  const kvrun::Model& model = engine->engine->model();
  SchedulerOptions options;
  options.n_parallel = read.n_parallel == 0 ? kUsualParallel : read.n_parallel;
  options.most_queued = read.most_queued == 0 ? kUsualQueued : read.most_queued;
  options.n_ctx = read.n_ctx == 0 ? model.config.n_ctx_train : read.n_ctx;
  if (read.least_ctx != 0) options.least_ctx = read.least_ctx;
  options.kv = std::move(of_session.kv);
  if (keeps) {
    if (read.folder != nullptr) options.stored.folder = read.folder;
    if (read.folder == nullptr) {
      KVRUN_ASSIGN_OR_RETURN(options.stored.folder, kvrun::SessionsFolder());
    }
    options.stored.key = std::move(of_session.key);
    options.stored.keep_bytes = read.keep_bytes == 0 ? kUsualKeepBytes : read.keep_bytes;
    KVRUN_ASSIGN_OR_RETURN(options.stored.model, model.Fingerprint());
  }
  return options;
}

Json RequestInfo(const kvrun::RequestReport& request) {
  return {{"id", request.id},
          {"state", kvrun::RequestStateName(request.state)},
          {"prompt_tokens", request.prompt_tokens},
          {"read_tokens", request.read_tokens},
          {"cached_tokens", request.cached_tokens},
          {"answer_tokens", request.answer_tokens}};
}

Json ReportInfo(const kvrun::SchedulerReport& report) {
  Json requests = Json::array();
  for (const kvrun::RequestReport& request : report.requests) requests.push_back(RequestInfo(request));
  Json kv = Json::array();
  for (const auto& [one, decode_tokens] : report.kv)
    kv.push_back(kvrun::capi::KvReportInfo(one, decode_tokens, false));
  Json stored = Json::array();
  for (const kvrun::StoredPrompts::Stored& one : report.stored)
    stored.push_back({{"name", one.name}, {"tokens", one.n_tokens}, {"bytes", one.size_bytes}});
  const auto queued = std::count_if(report.requests.begin(), report.requests.end(), [](const auto& request) {
    return request.state == kvrun::RequestState::kQueued;
  });
  return {{"requests", requests},
          {"queued", queued},
          {"ended", report.n_requests},
          {"cancelled", report.n_cancelled},
          {"failed", report.n_failed},
          {"prompt_tokens", report.prompt_tokens},
          {"cached_tokens", report.cached_tokens},
          {"answer_tokens", report.answer_tokens},
          {"decode_tokens", report.decode_tokens},
          {"prefill_ms", report.prefill_ms},
          {"decode_ms", report.decode_ms},
          {"read_bytes", report.read_bytes},
          {"written_bytes", report.written_bytes},
          {"kv", kv},
          {"stored", stored}};
}

}  // namespace

extern "C" {

void kvrun_scheduler_options_init(kvrun_scheduler_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
}

kvrun_status kvrun_scheduler_create(kvrun_engine* engine, const kvrun_scheduler_options* options,
                                    kvrun_scheduler** scheduler) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(scheduler, "scheduler"));
    *scheduler = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    KVRUN_ASSIGN_OR_RETURN(SchedulerOptions read, ReadSchedulerOptions(options, engine));
    auto handle = std::make_unique<kvrun_scheduler>();
    handle->engine = engine->engine.get();
    KVRUN_ASSIGN_OR_RETURN(handle->scheduler,
                           Scheduler::Create(std::move(read), [engine](const kvrun::SessionOptions& session) {
                             return engine->engine->CreateSession(session);
                           }));
    *scheduler = handle.release();
    return Status::Ok();
  });
}

void kvrun_scheduler_destroy(kvrun_scheduler* scheduler) {
  if (scheduler == nullptr) return;
  scheduler->scheduler->EndAll();  // events may cancel others: the handle is still whole
  delete scheduler;
}

kvrun_status kvrun_scheduler_add(kvrun_scheduler* scheduler, const int32_t* ids, size_t count,
                                 const kvrun_generate_options* generate, const kvrun_request_events* events,
                                 uint64_t* request) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(scheduler, "scheduler"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(ids, "ids"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(events, "events"));
    kvrun::capi::GenerateCall call;
    KVRUN_RETURN_IF_ERROR(call.Add(generate));
    const kvrun::Model& model = scheduler->engine->model();
    KVRUN_RETURN_IF_ERROR(kvrun::CheckTokenIds({ids, count}, model.config.n_vocab));
    KVRUN_RETURN_IF_ERROR(
        kvrun::CheckGenerateOptions(call.options[0], model.config.n_vocab, model.tokenizer != nullptr));
    kvrun_request_events read = {};
    read.struct_size = sizeof(read);
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(events, "kvrun_request_events", &read));
    KVRUN_ASSIGN_OR_RETURN(
        const kvrun::RequestId id,
        scheduler->scheduler->Add({.ids = {ids, ids + count}, .generate = call.options[0]},
                                  std::make_unique<CEvents>(read, call, scheduler->engine->device())));
    if (request != nullptr) *request = id;
    return Status::Ok();
  });
}

void kvrun_scheduler_cancel(kvrun_scheduler* scheduler, uint64_t request) {
  if (scheduler != nullptr) scheduler->scheduler->Cancel(request);
}

kvrun_status kvrun_scheduler_step(kvrun_scheduler* scheduler, uint32_t wait_ms, int* is_idle) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(scheduler, "scheduler"));
    bool has_work = scheduler->scheduler->StepOnce();
    if (!has_work && wait_ms > 0) {
      scheduler->scheduler->Wait(std::chrono::milliseconds(wait_ms));
      has_work = scheduler->scheduler->StepOnce();
    }
    if (is_idle != nullptr) *is_idle = has_work ? 0 : 1;
    return Status::Ok();
  });
}

kvrun_status kvrun_scheduler_json(const kvrun_scheduler* scheduler, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(scheduler, "scheduler"));
    Json info = ReportInfo(scheduler->scheduler->report());
    info["memory"] = kvrun::capi::MemoryOf(scheduler->engine->device());
    return kvrun::capi::CopyOut(info, json);
  });
}

}  // extern "C"
