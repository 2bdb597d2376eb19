#include "runtime/schedule/request.h"

#include <algorithm>

namespace kvrun {

const char* RequestStateName(RequestState state) {
  switch (state) {
    case RequestState::kQueued: return "queued";
    case RequestState::kReading: return "reading";
    case RequestState::kAnswering: return "answering";
  }
  return "";
}

Status RequestCancelled() { return {StatusCode::kCancelled, "the request was cancelled"}; }

uint32_t CommonLength(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace kvrun
