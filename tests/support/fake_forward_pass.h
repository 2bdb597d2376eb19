// A forward pass that computes nothing but is as exact as a model about its KV: the logits of a row are a
// hash of all tokens up to it, so a token that was lost, repeated or put in another place changes them.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/pass/forward_pass.h"

namespace kvrun::testing {

// What the passes of one engine share.
struct FakePassLog {
  std::atomic<int> n_running = 0;
  std::atomic<int> n_overlaps = 0;  // Run while another ran
  std::atomic<uint64_t> n_runs = 0;
  std::atomic<int> fail_at_run = -1;  // the number of the Run that answers kDevice
  std::atomic<int> nan_at_run = -1;
  std::atomic<uint64_t> n_recomputed = 0;           // what passes say
  std::vector<std::pair<uint32_t, uint32_t>> cuts;  // sequence, length
};

struct FakePassOptions {
  uint32_t n_sequences = 1;
  uint32_t n_ctx = 64;
  uint32_t n_vocab = 300;
  uint32_t max_rows = 16;
  uint32_t max_output_rows = 16;
  FakePassLog* log = nullptr;
  // Where it answers an id, that token has by far the largest logit after (sequence, position).
  std::function<TokenId(uint32_t sequence, uint32_t position)> script = {};
  uint32_t progress_rows = 0;  // Run asks the progress callback before every so many rows; 0: never
  std::optional<KvReport> kv_report = std::nullopt;
  bool keeps = false;  // can be saved; of one sequence
};

class FakeForwardPass : public ForwardPass {
 public:
  explicit FakeForwardPass(FakePassOptions options);

  uint32_t max_rows() const override { return options_.max_rows; }
  uint32_t max_output_rows() const override { return options_.max_output_rows; }
  uint32_t n_vocab() const override { return options_.n_vocab; }
  Status Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits) override;
  Status MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) override;
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) override;
  void SetProgress(StepProgress progress) override { progress_ = std::move(progress); }
  std::optional<KvReport> kv_report() const override { return options_.kv_report; }
  // Keeps the plan.
  void ResetKvReport() override;
  void Cut(uint32_t sequence, uint32_t length) override {
    if (options_.log != nullptr) options_.log->cuts.emplace_back(sequence, length);
  }
  uint64_t recomputed_tokens() const override {
    return options_.log != nullptr ? options_.log->n_recomputed.load() : 0;
  }

  // The logits after `tokens`, as Run writes them without a script.
  static std::vector<float> LogitsAfter(std::span<const TokenId> tokens, uint32_t n_vocab);

 private:
  std::string FindMisuse(const ForwardStep& step) const;
  Status ComputeRows(std::span<const StepRow> rows);
  Status WriteLogits(std::span<const uint32_t> outputs, std::span<float> logits);

  FakePassOptions options_;
  std::vector<uint64_t> kv_;  // [n_sequences, n_ctx]: hash of the tokens so far; 0: never written
  std::vector<StepRow> last_rows_;
  StepProgress progress_;
};

}  // namespace kvrun::testing
