#include "runtime/engine/device/rate_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvrun {
namespace {

void Keep(double us, uint32_t* count, double* least_us) {
  *least_us = *count == 0 ? us : std::min(*least_us, us);
  ++*count;
}

double Ratio(double seen, double kept) { return seen > 0.0 && kept > 0.0 ? seen / kept : 1.0; }

std::optional<std::string> PhaseFarOff(const char* phase, double seen_us, double kept_us, double usual) {
  const double surprise = Ratio(seen_us, kept_us) / usual;
  if (seen_us <= 0.0 || (surprise < kFarOff && surprise > 1.0 / kFarOff)) return std::nullopt;
  return fmt::format("{} ran at {:.3g} token/s, where {:.3g} were measured", phase, 1e6 / seen_us,
                     1e6 / kept_us);
}

class WatchedPass : public ForwardPass {
 public:
  WatchedPass(std::unique_ptr<ForwardPass> pass, std::shared_ptr<RateWatch> watch)
      : pass_(std::move(pass)), watch_(std::move(watch)) {}

  uint32_t max_rows() const override { return pass_->max_rows(); }
  uint32_t max_output_rows() const override { return pass_->max_output_rows(); }
  uint32_t n_vocab() const override { return pass_->n_vocab(); }
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) override {
    return pass_->VisitState(visitor, lengths);
  }

  Status Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits) override {
    const auto begin = std::chrono::steady_clock::now();
    Status status = pass_->Run(step, outputs, logits);
    const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - begin;
    // A step of several sequences, or of a draft, is none that was measured.
    if (status.ok() && (step.is_one_prompt() || step.size() == 1)) {
      watch_->Add(static_cast<uint32_t>(step.size()), step.rows().back().position, elapsed.count());
    }
    return status;
  }

  Status MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) override {
    return pass_->MoreLogits(outputs, logits);
  }
  void SetProgress(StepProgress progress) override { pass_->SetProgress(std::move(progress)); }
  std::optional<KvReport> kv_report() const override { return pass_->kv_report(); }
  void ResetKvReport() override { pass_->ResetKvReport(); }
  RecordCache* record_cache() override { return pass_->record_cache(); }
  LayerStates* layer_states() override { return pass_->layer_states(); }
  // Steps that are shared are not watched, as those of several sequences.
  StepMember* step_member() override { return pass_->step_member(); }
  void Cut(uint32_t sequence, uint32_t length) override { pass_->Cut(sequence, length); }
  uint64_t recomputed_tokens() const override { return pass_->recomputed_tokens(); }

 private:
  std::unique_ptr<ForwardPass> pass_;
  std::shared_ptr<RateWatch> watch_;
};

}  // namespace

void RateWatch::Add(uint32_t n_rows, uint32_t last_position, double step_us) {
  if (last_position >= kWatchedPositions) return;
  const std::lock_guard lock(mutex_);
  if (n_rows == 1) Keep(step_us, &n_decode_, &least_.decode_us);
  if (n_rows >= kWatchedChunkRows) Keep(step_us / n_rows, &n_prefill_, &least_.prefill_us);
}

DeviceTimes RateWatch::Seen() const {
  const std::lock_guard lock(mutex_);
  return {.prefill_us = n_prefill_ < kWatchedChunks ? 0.0 : least_.prefill_us,
          .decode_us = n_decode_ < kWatchedSteps ? 0.0 : least_.decode_us};
}

DeviceTimes RatioOf(const DeviceTimes& seen, const DeviceTimes& kept) {
  return {.prefill_us = Ratio(seen.prefill_us, kept.prefill_us),
          .decode_us = Ratio(seen.decode_us, kept.decode_us)};
}

std::optional<std::string> FarOff(const DeviceTimes& seen, const DeviceTimes& kept,
                                  const DeviceTimes& usual) {
  auto decode = PhaseFarOff("decoding", seen.decode_us, kept.decode_us, usual.decode_us);
  return decode ? decode : PhaseFarOff("prefill", seen.prefill_us, kept.prefill_us, usual.prefill_us);
}

std::unique_ptr<ForwardPass> WatchPass(std::unique_ptr<ForwardPass> pass, std::shared_ptr<RateWatch> watch) {
  return std::make_unique<WatchedPass>(std::move(pass), std::move(watch));
}

}  // namespace kvrun
