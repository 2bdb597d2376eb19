#include "apps/kvserve/service.h"

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include "apps/common/failure.h"
#include "apps/kvserve/answer_job.h"
#include "apps/kvserve/openai_reply.h"
#include "apps/kvserve/page.h"
#include "apps/kvserve/server_status.h"

namespace kvrun::serve {
namespace {

constexpr const char* kJson = "application/json";

void SendJson(HttpReply& reply, const Json& json) { reply.Send(200, kJson, cli::DumpJson(json)); }

// {path, method} of what there is, but for the page and for models by their name.
struct Route {
  std::string_view path;
  std::string_view method;
};
constexpr Route kRoutes[] = {{"/v1/chat/completions", "POST"},
                             {"/v1/completions", "POST"},
                             {"/v1/models", "GET"},
                             {"/tokenize", "POST"},
                             {"/detokenize", "POST"},
                             {"/health", "GET"},
                             {"/metrics", "GET"},
                             {"/status", "GET"}};
constexpr std::string_view kModelPrefix = "/v1/models/";

bool Reads(const HttpRequest& request) { return request.method == "GET" || request.method == "HEAD"; }

void CheckMethod(const HttpRequest& request) {
  for (const Route& route : kRoutes) {
    if (request.path != route.path) continue;
    const bool fits = route.method == "GET" ? Reads(request) : request.method == route.method;
    if (fits) return;
    throw ApiError(405, request.path + " takes " + std::string(route.method) + " and not " + request.method);
  }
  if (request.path.starts_with(kModelPrefix) && Reads(request)) return;
  throw ApiError(
      404, "there is no " + request.method + " " + request.path + ": docs/server.md lists what there is");
}

}  // namespace

ApiError ErrorOf(kvrun_status status, const std::string& message) {
  switch (status) {
    case KVRUN_INVALID_ARGUMENT:
    case KVRUN_UNSUPPORTED: return {400, message, "", "invalid_value"};
    case KVRUN_CONTEXT_FULL: return {400, message, "", "context_length_exceeded"};
    case KVRUN_OUT_OF_MEMORY: return {503, message};
    default: return {500, message};
  }
}

void SendError(HttpReply& reply, const ApiError& error) {
  HttpFields fields;
  if (error.status == 503) fields.emplace_back("Retry-After", "5");
  reply.Send(error.status, kJson, cli::DumpJson(ErrorJson(error)), fields);
}

Service::Service(Backend backend)
    : held_(std::make_shared<const Backend>(std::move(backend))), backend_(*held_) {}

Service::~Service() = default;

void Service::Handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  try {
    Answer(request, reply);
  } catch (const ApiError& error) {
    SendError(*reply, error);
  } catch (const cli::Failure& failure) {
    SendError(*reply, ErrorOf(failure.status(), failure.what()));
  }
}

void Service::Answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  if (const PageFile* file = FindPageFile(request.path); file != nullptr && Reads(request)) {
    return reply->Send(200, file->content_type, std::string(file->bytes),
                       {{"Content-Security-Policy", std::string(kPagePolicy)},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Referrer-Policy", "no-referrer"},
                        {"Cache-Control", "no-cache"}});
  }
  CheckMethod(request);
  if (request.path == "/health") return SendJson(*reply, {{"status", "ok"}});
  if (request.path == "/v1/models")
    return SendJson(*reply, ModelsJson(backend_.model_name, backend_.created_s));
  if (request.path == "/status") return SendJson(*reply, StatusOf(backend_.model_name, ReportOf(backend_)));
  if (request.path == "/metrics")
    return reply->Send(200, "text/plain; version=0.0.4; charset=utf-8", MetricsOf(ReportOf(backend_)));
  if (request.path.starts_with(kModelPrefix)) {
    if (request.path.substr(kModelPrefix.size()) != backend_.model_name)
      throw ApiError(404, "there is one model, " + backend_.model_name, "model", "model_not_found");
    return SendJson(*reply, ModelJson(backend_.model_name, backend_.created_s));
  }
  if (request.path == "/tokenize") {
    const TokenizeRequest asked = ParseTokenizeRequest(request.body);
    const uint32_t flags = (asked.parse_special ? KVRUN_ENCODE_PARSE_SPECIAL : 0U) |
                           (asked.add_special ? KVRUN_ENCODE_BOS_IF_ASKED : 0U);
    return SendJson(*reply, {{"tokens", cli::Tokenize(*backend_.model, asked.content, flags)}});
  }
  if (request.path == "/detokenize") {
    return SendJson(*reply,
                    {{"content", cli::Detokenize(*backend_.model, ParseDetokenizeRequest(request.body))}});
  }
  Complete(request.path == "/v1/completions" ? ParseCompletionRequest(request.body)
                                             : ParseChatRequest(request.body),
           reply);
}

void Service::Complete(CompletionRequest request, const std::shared_ptr<HttpReply>& reply) {
  if (refuses_) throw ApiError(503, "the server is about to end");
  const auto job = std::make_shared<AnswerJob>(held_, std::move(request), reply);
  job->Start();
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [](const std::weak_ptr<AnswerJob>& old) { return old.expired(); });
  jobs_.push_back(job);
}

void Service::Tick() {
  std::vector<std::shared_ptr<AnswerJob>> jobs;
  {
    const std::lock_guard lock(mutex_);
    for (const std::weak_ptr<AnswerJob>& each : jobs_) {
      if (auto job = each.lock()) jobs.push_back(std::move(job));
    }
  }
  for (const std::shared_ptr<AnswerJob>& job : jobs) job->Tick();
}

}  // namespace kvrun::serve
