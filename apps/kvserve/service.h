// What kvrun serve answers: each path, for one model and its scheduler.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "apps/kvserve/backend.h"
#include "apps/kvserve/http_server.h"
#include "apps/kvserve/openai_request.h"

namespace kvrun::serve {

class AnswerJob;

// Any thread.
class Service {
 public:
  explicit Service(Backend backend);
  ~Service();

  void Handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  // Once a second or so: clients that have heard nothing for a while get a comment.
  void Tick();

  // Refuses what comes from now on with 503, as the server is about to end.
  void RefuseMore() { refuses_ = true; }

 private:
  void Answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void Complete(CompletionRequest request, const std::shared_ptr<HttpReply>& reply);

  const std::shared_ptr<const Backend> held_;
  const Backend& backend_;
  std::atomic<bool> refuses_ = false;
  std::mutex mutex_;  // of jobs_
  std::vector<std::weak_ptr<AnswerJob>> jobs_;
};

// What the library refuses is the request's fault, or the server's.
ApiError ErrorOf(kvrun_status status, const std::string& message);
// An error as the answer; 503 says when to try again.
void SendError(HttpReply& reply, const ApiError& error);

}  // namespace kvrun::serve
