#include "offline/quality_meter.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "platform/base/units.h"
#include "platform/io/available_memory.h"

namespace kvrun::offline {
namespace {

// Of available memory. What else a prefill and a session take is small beside it.
constexpr double kMemoryShare = 0.8;

}  // namespace

Result<uint64_t> MostPieces(const Engine& engine, uint32_t n_ctx, uint32_t n_steps, uint64_t memory_bytes) {
  constexpr uint64_t kNoLimit = std::numeric_limits<uint32_t>::max();
  if (memory_bytes == 0) {
    const std::string& kind = engine.device().info().kind;
    if (kind != "cpu" && kind != "integrated") return kNoLimit;
    const std::optional<uint64_t> available = AvailableMemoryBytes();
    if (!available) return kNoLimit;
    memory_bytes = static_cast<uint64_t>(kMemoryShare * static_cast<double>(*available));
  }
  const ModelConfig& config = engine.model().config;
  const uint64_t piece_bytes =
      n_ctx * config.KvBytesPerToken(2) + uint64_t{n_steps} * config.n_vocab * sizeof(float);
  if (piece_bytes <= memory_bytes) return memory_bytes / piece_bytes;
  return Status(StatusCode::kOutOfMemory,
                fmt::format("quality is measured against all KV of {} tokens in memory, which takes {}, but "
                            "only {} are free: tune for a shorter context, or where there is more memory",
                            n_ctx, FormatBytes(piece_bytes), FormatBytes(memory_bytes)));
}

Result<std::unique_ptr<QualityMeter>> QualityMeter::Create(Engine& engine, const QualityMeterOptions& options,
                                                           const OfflineProgress& progress) {
  const size_t n_ids = options.ids.size();
  if (n_ids < options.ctx * (options.held_out ? uint64_t{2} : uint64_t{1})) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the text has {} tokens, too few to measure quality at a context of {}: give "
                              "longer texts (-f, several times), or tune for shorter contexts",
                              n_ids, options.ctx));
  }
  auto meter = std::make_unique<QualityMeter>();
  meter->n_steps_ = options.n_steps;
  KVRUN_ASSIGN_OR_RETURN(const uint64_t most,
                         MostPieces(engine, options.ctx, options.n_steps, options.memory_bytes));
  size_t n_pieces = std::min<uint64_t>({options.n_pieces, n_ids / options.ctx, 2 * most});
  if (n_pieces > 1) n_pieces -= n_pieces % 2;  // so that what is held out counts as much as the rest
  const size_t first = options.held_out ? 1 : 0;
  const size_t n_taken = (n_pieces - first + 1) / 2;
  for (size_t i = first; i < n_pieces; i += 2) {
    const size_t begin = n_pieces == 1 ? 0 : (n_ids - options.ctx) * i / (n_pieces - 1);
    bool is_too_late = false;
    const auto piece_progress = [&](uint64_t done, uint64_t total) {
      is_too_late = options.is_too_late && options.is_too_late(done, total);
      return is_too_late ||
             (progress && progress("reading the texts", i / 2 * total + done, n_taken * total));
    };
    Result<std::unique_ptr<Evaluation>> piece = engine.CreateEvaluation(
        options.ids.subspan(begin, options.ctx),
        {.n_ctx = options.ctx, .n_steps = options.n_steps, .measures_recall = false}, piece_progress);
    if (!piece.ok() && is_too_late && !meter->pieces_.empty()) break;
    KVRUN_RETURN_IF_ERROR(piece.status());
    meter->pieces_.push_back(std::move(piece).value());
  }
  return meter;
}

Result<Quality> QualityMeter::Measure(const KvSettings& settings, const std::function<bool()>& is_cancelled) {
  Quality quality;
  uint64_t chosen = 0;
  uint64_t hits = 0;
  uint64_t reads = 0;
  double most_chosen = 0.0;
  double io_ms = 0.0;
  double stall_ms = 0.0;
  const auto n_pieces = static_cast<double>(pieces_.size());
  for (const std::unique_ptr<Evaluation>& piece : pieces_) {
    KVRUN_ASSIGN_OR_RETURN(const EvaluationResult result,
                           piece->Run(settings, [&](uint64_t, uint64_t) { return is_cancelled(); }));
    quality.kl += result.logits.kl_mean() / n_pieces;
    quality.top1 += result.logits.top1_agreement() / n_pieces;
    quality.step_ms += 1e3 / result.decode_tps / n_pieces;
    chosen += result.report.stats.chosen_groups;
    // What others stood in for was not read either.
    hits += result.report.stats.hit_groups + result.report.stats.stand_in_groups;
    reads += result.report.store.reads;
    const KvPlan& plan = result.report.plan;
    const KvStats& stats = result.report.stats;
    most_chosen += static_cast<double>(stats.choices) * FreeGroups(plan);
    io_ms += stats.io_ms;
    stall_ms += stats.stall_ms;
  }
  const uint64_t loads = chosen - hits;
  quality.hit_rate = chosen == 0 ? 1.0 : static_cast<double>(hits) / static_cast<double>(chosen);
  quality.reads_per_load =
      loads == 0 ? 1.0 : std::min(1.0, static_cast<double>(reads) / static_cast<double>(loads));
  if (most_chosen > 0.0) quality.chosen_share = std::min(1.0, static_cast<double>(chosen) / most_chosen);
  if (io_ms > 0.0) quality.hidden = std::clamp(1.0 - stall_ms / io_ms, 0.0, 1.0);
  return quality;
}

}  // namespace kvrun::offline
