// The toy's thoughts: "<think>\n" .. "\n</think>\n\n" at the start of its answers, as it writes them.
#include <kvrun/kvrun.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view kOpen = "<think>\n";
constexpr std::string_view kClose = "\n</think>\n\n";

}  // namespace

struct kvrun_reasoning {
  enum { kStart, kThoughts, kAnswer } place = kStart;
  std::string held;

  void HandOn(size_t n_bytes, kvrun_reasoning_fn part, void* user) {
    if (n_bytes > 0) part(user, place == kThoughts ? 1 : 0, held.data(), n_bytes);
    held.erase(0, n_bytes);
  }
  void Advance(kvrun_reasoning_fn part, void* user) {
    if (place == kStart && kOpen.starts_with(std::string_view(held).substr(0, kOpen.size()))) {
      if (held.size() < kOpen.size()) return;
      held.erase(0, kOpen.size());
      place = kThoughts;
    } else if (place == kStart) {
      place = kAnswer;
    }
    if (place == kThoughts) {
      const size_t close = held.find(kClose);
      size_t n_begun = std::min(held.size(), kClose.size() - 1);
      while (!held.ends_with(kClose.substr(0, n_begun))) --n_begun;
      HandOn(std::min(close, held.size() - n_begun), part, user);
      if (close == std::string::npos) return;
      held.erase(0, kClose.size());
      place = kAnswer;
    }
    HandOn(held.size(), part, user);
  }
};

kvrun_status kvrun_reasoning_begin(const kvrun_model*, const int32_t*, size_t, kvrun_reasoning** reasoning) {
  *reasoning = new kvrun_reasoning;
  return KVRUN_OK;
}

kvrun_status kvrun_reasoning_next(kvrun_reasoning* reasoning, int32_t, const char* text, size_t text_bytes,
                                  kvrun_reasoning_fn part, void* user) {
  reasoning->held.append(text, text_bytes);
  reasoning->Advance(part, user);
  return KVRUN_OK;
}

kvrun_status kvrun_reasoning_end(kvrun_reasoning* reasoning, kvrun_reasoning_fn part, void* user) {
  reasoning->HandOn(reasoning->held.size(), part, user);
  return KVRUN_OK;
}

void kvrun_reasoning_close(kvrun_reasoning* reasoning) { delete reasoning; }
