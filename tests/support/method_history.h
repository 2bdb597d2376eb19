// Histories that nobody has thought of, for every KV method (tests/e2e/method_properties_test.cc): prompts,
// tokens and drafts of several sequences, alone and together, what was said taken back, prompts that are
// cancelled, and reads and writes that fail. Each seed is one history.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/kv/plan/kv_step.h"

namespace kvrun::testing {

inline constexpr uint32_t kHistoryContext = 160;
inline constexpr uint32_t kHistoryVocabulary = 300;

enum class TroubleKind : uint8_t {
  kNothing,
  kReads,   // from one on, all reads fail until the step has ended
  kWrites,  // the same of writes
  kCancel,  // a prompt of it is cancelled
};

// A span of a step. Of a draft, n_kept tokens are right.
struct SpanOfHistory {
  SpanKind kind = SpanKind::kDecode;
  uint32_t sequence = 0;
  uint32_t begin = 0;
  std::vector<int> ids;
  uint32_t n_kept = 0;

  uint32_t n_rows() const { return static_cast<uint32_t>(ids.size()); }
  uint32_t end() const { return begin + n_rows(); }
  // Whose logits are wanted: of a prompt those of its last row.
  uint32_t first_output() const { return kind == SpanKind::kPrompt ? n_rows() - 1 : 0; }
};

struct StepOfHistory {
  std::vector<SpanOfHistory> spans;
  TroubleKind trouble = TroubleKind::kNothing;
  uint32_t trouble_at = 0;    // how many requests, or questions whether to cancel, go well before
  bool is_abandoned = false;  // when cancelled: not given again
};

struct History {
  uint64_t seed = 0;
  uint32_t n_sequences = 0;
  std::vector<StepOfHistory> steps;
};

std::string Describe(const StepOfHistory& step);
// With what runs it again.
std::string Describe(const History& history);

History MakeHistory(uint64_t seed);

}  // namespace kvrun::testing
