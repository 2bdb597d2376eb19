#include "tests/support/method_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "platform/base/random.h"

namespace kvrun::testing {

namespace {

constexpr uint32_t kHistorySteps = 32;

// Draws a history; what it draws next depends on how long the sequences are by then.
class HistoryMaker {
 public:
  explicit HistoryMaker(uint64_t seed) : random_(seed) {
    history_.seed = seed;
    history_.n_sequences = 2 + random_.Below(2);
    lengths_.resize(history_.n_sequences);
    abandons_ = Chance(2);
    fails_writes_ = Chance(2);
  }

  History Make() {
    while (history_.steps.size() < kHistorySteps) {
      if (history_.steps.size() % 8 == 0) only_decodes_ = history_.steps.size() > 0 && !Chance(3);
      AddStep();
    }
    return std::move(history_);
  }

 private:
  bool Chance(uint32_t one_of) { return random_.Below(one_of) == 0; }

  void AddStep() {
    StepOfHistory step;
    const uint32_t n_spans = Chance(2) ? 1 : 1 + random_.Below(history_.n_sequences);
    std::vector<uint32_t> sequences(history_.n_sequences);
    for (uint32_t i = 0; i < history_.n_sequences; ++i) sequences[i] = i;
    uint32_t n_left = kHistoryContext;  // rows of a step, at most
    for (uint32_t i = 0; i < n_spans && n_left > 0; ++i) {
      std::swap(sequences[i], sequences[i + random_.Below(history_.n_sequences - i)]);
      step.spans.push_back(NewSpan(sequences[i], n_left));
      n_left -= step.spans.back().n_rows();
    }
    AddTrouble(step);
    for (const SpanOfHistory& span : step.spans) {
      lengths_[span.sequence] = span.begin + (step.is_abandoned ? 0 : span.n_kept);
    }
    history_.steps.push_back(std::move(step));
  }

  SpanOfHistory NewSpan(uint32_t sequence, uint32_t most_rows) {
    SpanOfHistory span;
    span.sequence = sequence;
    span.begin = Begin(lengths_[sequence]);
    const uint32_t room = std::min(kHistoryContext - span.begin, most_rows);
    const uint32_t kind = random_.Below(8);
    span.kind = span.begin == 0 || (kind < 3 && !only_decodes_) ? SpanKind::kPrompt
                : kind < 6                                      ? SpanKind::kDecode
                                                                : SpanKind::kVerify;
    uint32_t n_rows = 1;
    // Mostly long ones, and rows alone.
    if (span.kind == SpanKind::kPrompt)
      n_rows = Chance(6) ? 1 : 1 + random_.Below(span.begin == 0 ? 120 : 50);
    if (span.kind == SpanKind::kVerify) n_rows = 2 + random_.Below(7);
    n_rows = std::min(n_rows, room);
    for (uint32_t i = 0; i < n_rows; ++i) {
      span.ids.push_back(static_cast<int>(3 + random_.Below(kHistoryVocabulary - 3)));
    }
    span.n_kept = span.kind == SpanKind::kVerify && Chance(2) ? 1 + random_.Below(n_rows) : n_rows;
    return span;
  }

  // Mostly where the sequence ends. Else some of it is taken back, or all.
  uint32_t Begin(uint32_t length) {
    const uint32_t kind = random_.Below(10);
    uint32_t begin = length;
    if (kind == 0 && !only_decodes_) begin = 0;
    if (kind == 1) begin = random_.Below(length + 1);
    if (kind == 2 || kind == 3) begin = length - random_.Below(std::min(length, 24U) + 1);
    return begin + 8 > kHistoryContext ? begin / 2 : begin;
  }

  void AddTrouble(StepOfHistory& step) {
    const bool has_prompt = std::any_of(step.spans.begin(), step.spans.end(), [](const SpanOfHistory& span) {
      return span.kind == SpanKind::kPrompt && span.n_rows() > 1;
    });
    const uint32_t kind = random_.Below(10);
    step.trouble_at = random_.Below(1U << random_.Below(6));
    const bool cancels = Chance(3);
    const bool is_for_good = Chance(2);
    if (has_prompt && cancels) {
      step.trouble = TroubleKind::kCancel;
      step.trouble_at %= 3;
      step.is_abandoned = abandons_ && is_for_good;
    } else if (kind < 4) {
      step.trouble = TroubleKind::kReads;
    } else if (kind < 6 && fails_writes_) {
      step.trouble = TroubleKind::kWrites;
    }
  }

  Random random_;
  History history_;
  std::vector<uint32_t> lengths_;
  // For a few steps: what slots hold is given up for each prompt.
  bool only_decodes_ = false;
  bool abandons_ = false;
  bool fails_writes_ = false;
};

}  // namespace

std::string Describe(const StepOfHistory& step) {
  std::string text;
  for (const SpanOfHistory& span : step.spans) {
    const char* const kind = span.kind == SpanKind::kPrompt   ? "prompt"
                             : span.kind == SpanKind::kDecode ? "token"
                                                              : "draft";
    text += fmt::format("{}{} of {}: [{}, {})", text.empty() ? "" : " + ", kind, span.sequence, span.begin,
                        span.end());
    if (span.n_kept < span.n_rows()) text += fmt::format(", {} right", span.n_kept);
  }
  switch (step.trouble) {
    case TroubleKind::kNothing: break;
    case TroubleKind::kReads: text += fmt::format("; reads fail from number {} on", step.trouble_at); break;
    case TroubleKind::kWrites: text += fmt::format("; writes fail from number {} on", step.trouble_at); break;
    case TroubleKind::kCancel:
      text +=
          fmt::format("; cancelled at question {}{}", step.trouble_at, step.is_abandoned ? " for good" : "");
      break;
  }
  return text;
}

std::string Describe(const History& history) {
  std::string text =
      fmt::format("KVRUN_SEED={} KVRUN_HISTORIES=1: {} sequences", history.seed, history.n_sequences);
  for (size_t i = 0; i < history.steps.size(); ++i) {
    text += fmt::format("\n  {}. {}", i, Describe(history.steps[i]));
  }
  return text;
}

History MakeHistory(uint64_t seed) { return HistoryMaker(seed).Make(); }

}  // namespace kvrun::testing
