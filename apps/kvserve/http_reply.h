// What a handler holds of its request: takes the answer on any thread and hands it on in order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "apps/kvserve/http_server.h"

namespace kvrun::serve {

// A step of an answer.
struct ReplyPart {
  enum class Kind : uint8_t { kWhole, kBegin, kEvent, kEnd, kCut };  // kCut: the end, which is an error
  Kind kind = Kind::kWhole;
  unsigned status = 200;
  std::string content_type;
  std::string text;  // the body, or lines of an event
  HttpFields fields;
};

// Between a reply and its connection. After the end, and after the client has gone, nothing goes through.
class ReplyChannel {
 public:
  using Sink = std::function<void(ReplyPart)>;
  explicit ReplyChannel(Sink sink) : sink_(std::move(sink)) {}

  void Pass(ReplyPart part);
  // 500 where nothing was said; where events have begun, they end without an end.
  void Fail(const std::string& message);

  bool is_gone() const { return is_gone_.load(); }
  void OnGone(std::function<void()> gone);
  // What is to be called, if anything. Of the connection: when the client goes, or was told all.
  std::function<void()> MarkGone();

 private:
  enum class Phase : uint8_t { kNothing, kEvents, kEnded };

  std::mutex mutex_;
  Phase phase_ = Phase::kNothing;  // the fields below are under the mutex, too
  Sink sink_;                      // called under it: parts come in order
  std::function<void()> gone_;
  std::atomic<bool> is_gone_{false};
};

// The channel outlives it.
std::shared_ptr<HttpReply> MakeReply(std::shared_ptr<ReplyChannel> channel);

// The first lines of an answer up to the empty line. No length: it comes in chunks, or until the end.
struct ResponseHead {
  unsigned status = 200;
  std::string content_type;
  HttpFields fields;
  bool has_length = true;
  size_t body_bytes = 0;
  bool is_chunked = false;
  bool is_kept_alive = false;
};
std::string HeadText(const ResponseHead& head);
std::string ChunkText(std::string_view bytes);  // some

}  // namespace kvrun::serve
