// What a forward pass computes at once: rows of tokens in spans, each of a sequence of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/kv/plan/kv_step.h"
#include "runtime/model/tokenizer.h"

namespace kvrun {

struct StepRow {
  TokenId id = 0;
  uint32_t position = 0;
  uint32_t sequence = 0;
};

// Example: a server's step has the next 200 rows of one prompt (kPrompt, sequence 3), a token each of two
// answers (kDecode, sequences 0 and 1) and a draft of 4 tokens (kVerify, sequence 2): 4 spans, 206 rows.
class ForwardStep {
 public:
  ForwardStep() = default;
  ForwardStep(SpanKind kind, const StepRow& row) { Add(kind, row); }

  void Clear() {
    rows_.clear();
    kv_.spans.clear();
  }
  // A row belongs to the last span where it goes on there, in the same way.
  void Add(SpanKind kind, const StepRow& row);
  void Add(SpanKind kind, std::span<const TokenId> ids, uint32_t first_position, uint32_t sequence) {
    for (const TokenId id : ids) Add(kind, {id, first_position++, sequence});
  }

  std::span<const StepRow> rows() const { return rows_; }
  const KvStep& kv() const { return kv_; }
  size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }
  bool is_one_prompt() const { return kv_.spans.size() == 1 && kv_.spans[0].kind == SpanKind::kPrompt; }
  // One prompt, or spans of one row that are none.
  bool is_one_part() const {
    return is_one_prompt() || std::all_of(kv_.spans.begin(), kv_.spans.end(), [](const KvSpan& span) {
             return span.kind != SpanKind::kPrompt && span.n_rows == 1;
           });
  }

 private:
  std::vector<StepRow> rows_;
  KvStep kv_;
};

inline void ForwardStep::Add(SpanKind kind, const StepRow& row) {
  rows_.push_back(row);
  if (!kv_.spans.empty()) {
    KvSpan& last = kv_.spans.back();
    if (last.kind == kind && last.sequence == row.sequence && last.end() == row.position) {
      ++last.n_rows;
      return;
    }
  }
  kv_.spans.push_back({row.sequence, row.position, 1, kind});
}

}  // namespace kvrun
