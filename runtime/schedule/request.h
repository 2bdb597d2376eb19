// What a scheduler is asked for, and what it tells meanwhile.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/session/session.h"
#include "runtime/kv/plan/kv_report.h"
#include "runtime/model/tokenizer.h"

namespace kvrun {

using RequestId = uint64_t;

// A prompt, of which all is given, also what was said before: what of it is kept is found.
struct Request {
  std::vector<TokenId> ids;
  GenerateOptions generate;  // draws_by_seed_alone is taken as true
};

// Of a request that has ended, however.
struct RequestOutcome {
  Status status = Status::Ok();  // kCancelled: somebody asked for its end; what was read stays
  GenerateResult result;
  SessionStats stats;  // of this request alone
  std::vector<std::string> notes;
  std::vector<std::string> details;  // for experts
  std::optional<KvReport> kv;        // where its session has one
};

// Called on the scheduler's threads, one call at a time. They may not call the scheduler, but for Cancel.
class RequestEvents {
 public:
  virtual ~RequestEvents() = default;
  // Tokens of the prompt: `done` of `total` are there, `cached` of which were there before.
  virtual void OnProgress(uint64_t done, uint64_t total, uint64_t cached) = 0;
  // Answers true to cancel.
  virtual bool OnToken(const GeneratedToken& token) = 0;
  // The last call.
  virtual void OnEnd(const RequestOutcome& outcome) = 0;
};

enum class RequestState : uint8_t { kQueued, kReading, kAnswering };
const char* RequestStateName(RequestState state);  // "queued", "reading", "answering"

Status RequestCancelled();

// How many tokens both begin with.
uint32_t CommonLength(std::span<const TokenId> a, std::span<const TokenId> b);

}  // namespace kvrun
