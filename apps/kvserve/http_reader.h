// Reads one request from the bytes of a connection, with its limits and http_rules.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "apps/kvserve/http_rules.h"
#include "apps/kvserve/http_server.h"

namespace kvrun::serve {

class RequestReader {
 public:
  enum class State : uint8_t { kHead, kBody, kDone, kRefused };

  explicit RequestReader(const HttpOptions& options);  // which have to live longer
  ~RequestReader();

  // Takes what belongs to the request from the beginning of `input`. What is left is of the next one, or part
  // of something, whose rest is awaited.
  State Read(std::string* input);
  const Refusal& refusal() const { return refusal_; }  // in kRefused

  bool has_begun() const { return has_begun_; }
  // From kBody on; before it, as HTTP/1.1 has them.
  bool is_http_1_1() const { return is_http_1_1_; }
  bool is_kept_alive() const { return is_kept_alive_; }
  bool is_of_head() const { return is_of_head_; }  // the answer has no body
  // The client waits for a word before it sends the body. True once.
  bool TakeWaiting();
  size_t body_bytes() const;  // that have come

  HttpRequest Take();  // in kDone

 private:
  struct Parser;

  void Parse(std::string* input);
  void FinishHead();
  void Refuse(Refusal refusal);

  const HttpOptions& options_;
  std::unique_ptr<Parser> parser_;
  State state_ = State::kHead;
  Refusal refusal_;
  HttpRequest request_;
  size_t head_bytes_ = 0;
  bool has_begun_ = false;
  bool is_http_1_1_ = true;
  bool is_kept_alive_ = true;
  bool is_of_head_ = false;
  bool is_waiting_ = false;
};

}  // namespace kvrun::serve
