#include "runtime/engine/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "platform/base/units.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/resident_pass.h"
#include "runtime/model/fingerprint.h"

namespace kvrun {
namespace {

constexpr uint64_t kMaxPieceKvBytes = 512 * kMiB;

Status Invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status CheckIds(const CalibrationOptions& options, const ModelConfig& config) {
  for (size_t text = 0; text < options.texts.size(); ++text) {
    const std::span<const TokenId> ids = options.texts[text];
    const auto unknown = std::find_if(ids.begin(), ids.end(),
                                      [&](TokenId id) { return id < 0 || uint32_t(id) >= config.n_vocab; });
    if (unknown == ids.end()) continue;
    return Invalid(fmt::format("text {}: token {} (the id {}) is not in the vocabulary (0 to {})", text + 1,
                               unknown - ids.begin() + 1, *unknown, config.n_vocab - 1));
  }
  return Status::Ok();
}

// Fewer keys than columns leave directions that no key has.
Status CheckEnough(const CalibrationOptions& options, const CalibrationPlan& plan) {
  const uint64_t n_left_out = plan.pieces.size() * kCalibrationSinks;
  if (!plan.pieces.empty() && plan.n_tokens - n_left_out >= plan.rank) return Status::Ok();
  uint64_t n_given = 0;
  for (const auto& text : options.texts) n_given += text.size();
  return Invalid(fmt::format(
      "too little text: {} tokens, of which {} count (the first {} of each piece and pieces shorter than {} "
      "do "
      "not); an adapter of rank {} needs {}: give longer texts, or ask for a smaller rank",
      n_given, plan.n_tokens - n_left_out, kCalibrationSinks, kMinPieceTokens, plan.rank, plan.rank));
}

void CutIntoPieces(std::span<const TokenId> text, uint32_t n_ctx, CalibrationPlan* plan) {
  while (text.size() >= kMinPieceTokens) {
    const auto piece = text.first(std::min<size_t>(text.size(), n_ctx));
    plan->pieces.push_back(piece);
    plan->max_piece_tokens = std::max(plan->max_piece_tokens, static_cast<uint32_t>(piece.size()));
    plan->n_tokens += piece.size();
    text = text.subspan(piece.size());
  }
}

// A layer's sums in double precision.
class SumTotals {
 public:
  void Add(const LayerSums& sums) {
    shape_ = sums;
    AddTo(sums.keys, &keys_);
    AddTo(sums.queries, &queries_);
    n_keys_ += sums.n_keys;
    n_queries_ += sums.n_queries;
  }

  Result<LayerAdapter> Compute(AdapterKind kind, uint32_t rank) const {
    const std::vector<float> keys(keys_.begin(), keys_.end());
    const std::vector<float> queries(queries_.begin(), queries_.end());
    LayerSums sums = shape_;
    sums.n_keys = n_keys_;
    sums.keys = keys;
    sums.n_queries = n_queries_;
    sums.queries = queries;
    return ComputeAdapter(kind, sums, rank);
  }

 private:
  static void AddTo(std::span<const float> values, std::vector<double>* totals) {
    totals->resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) (*totals)[i] += values[i];
  }

  LayerSums shape_;
  std::vector<double> keys_;
  std::vector<double> queries_;
  uint64_t n_keys_ = 0;
  uint64_t n_queries_ = 0;
};

class Calibrator {
 public:
  Calibrator(const Model& model, std::mutex* device_mutex, const CalibrationPlan& plan,
             const CalibrationOptions& options, const ProgressCallback& progress)
      : model_(model), device_mutex_(device_mutex), plan_(plan), options_(options), progress_(progress) {}
  Calibrator(const Calibrator&) = delete;
  Calibrator& operator=(const Calibrator&) = delete;
  ~Calibrator() {
    const std::lock_guard lock(*device_mutex_);
    pass_.reset();
  }

  Status SumUp(std::shared_ptr<const DeviceWeights> weights, Device& device) {
    {
      const std::lock_guard lock(*device_mutex_);
      KVRUN_ASSIGN_OR_RETURN(pass_,
                             ResidentForwardPass::Create(model_, std::move(weights), device,
                                                         {.n_sequences = 1, .n_ctx = plan_.max_piece_tokens},
                                                         kCalibrationSinks));
    }
    totals_.resize(model_.config.n_layers);
    for (const std::span<const TokenId> piece : plan_.pieces) KVRUN_RETURN_IF_ERROR(Prefill(piece));
    const std::lock_guard lock(*device_mutex_);
    if (n_undrained_ > 0) KVRUN_RETURN_IF_ERROR(Drain());
    pass_.reset();
    return Status::Ok();
  }

  Result<std::vector<LayerAdapter>> Compute() {
    std::vector<LayerAdapter> layers;
    for (const SumTotals& totals : totals_) {
      KVRUN_RETURN_IF_ERROR(Ask(plan_.n_tokens - 1));
      auto layer = totals.Compute(options_.kind, plan_.rank);
      if (!layer.ok()) return layer.status().WithContext(fmt::format("layer {}", layers.size()));
      layers.push_back(std::move(layer).value());
    }
    KVRUN_RETURN_IF_ERROR(Ask(plan_.n_tokens));
    return layers;
  }

 private:
  Status Ask(uint64_t done) const {
    if (!progress_ || !progress_(done, plan_.n_tokens)) return Status::Ok();
    return {StatusCode::kCancelled, "the calibration was cancelled"};
  }

  Status Prefill(std::span<const TokenId> piece) {
    std::vector<StepRow> rows;
    for (size_t begin = 0; begin < piece.size(); begin += rows.size()) {
      KVRUN_RETURN_IF_ERROR(Ask(n_done_));
      size_t n_rows = std::min<size_t>(piece.size() - begin, pass_->max_rows());
      // Single rows are not summed up.
      if (begin + n_rows + 1 == piece.size()) --n_rows;
      rows.clear();
      for (size_t i = begin; i < begin + n_rows; ++i) rows.push_back({piece[i], static_cast<uint32_t>(i), 0});
      const std::lock_guard lock(*device_mutex_);
      KVRUN_RETURN_IF_ERROR(pass_->Run(rows, {}, {}));
      n_done_ += n_rows;
      n_undrained_ += n_rows;
      if (n_undrained_ >= options_.rows_per_drain) KVRUN_RETURN_IF_ERROR(Drain());
    }
    return Status::Ok();
  }

  // Under the lock.
  Status Drain() {
    for (uint32_t i = 0; i < totals_.size(); ++i) {
      KVRUN_ASSIGN_OR_RETURN(const LayerSums sums, pass_->Sums(i));
      totals_[i].Add(sums);
    }
    n_undrained_ = 0;
    return pass_->ClearSums();
  }

  const Model& model_;
  std::mutex* device_mutex_;
  const CalibrationPlan& plan_;
  const CalibrationOptions& options_;
  const ProgressCallback& progress_;
  std::unique_ptr<ResidentForwardPass> pass_;
  std::vector<SumTotals> totals_;  // of each layer
  uint64_t n_done_ = 0;
  uint64_t n_undrained_ = 0;  // rows in the device's sums
};

}  // namespace

uint32_t DefaultPieceTokens(const ModelConfig& config) {
  const uint64_t affordable = kMaxPieceKvBytes / config.KvBytesPerToken(sizeof(uint16_t));
  const auto tokens = static_cast<uint32_t>(std::min<uint64_t>(ChooseContext(0, config), affordable));
  return std::max(tokens, kMinPieceTokens);
}

Result<CalibrationPlan> PlanCalibration(const CalibrationOptions& options, const ModelConfig& config) {
  const uint32_t n_ctx = options.n_ctx == 0 ? DefaultPieceTokens(config) : options.n_ctx;
  if (n_ctx < kMinPieceTokens) {
    return Invalid(fmt::format("pieces of {} tokens are too short to calibrate with: make them at least {}",
                               n_ctx, kMinPieceTokens));
  }
  CalibrationPlan plan;
  plan.rank = options.rank == 0 ? std::min(config.kv_dim(), kMaxDefaultRank) : options.rank;
  if (plan.rank > config.kv_dim()) {
    return Invalid(
        fmt::format("an adapter of rank {} was asked for; this model's keys have {} elements: ask "
                    "for 1 to {}",
                    plan.rank, config.kv_dim(), config.kv_dim()));
  }
  KVRUN_RETURN_IF_ERROR(CheckIds(options, config));
  for (const std::span<const TokenId> text : options.texts) CutIntoPieces(text, n_ctx, &plan);
  KVRUN_RETURN_IF_ERROR(CheckEnough(options, plan));
  return plan;
}

Result<Calibration> CalibrateAdapter(const Model& model, std::shared_ptr<const DeviceWeights> weights,
                                     Device& device, std::mutex* device_mutex,
                                     const CalibrationOptions& options, const std::string& path,
                                     const ProgressCallback& progress) {
  KVRUN_ASSIGN_OR_RETURN(const CalibrationPlan plan, PlanCalibration(options, model.config));
  KVRUN_RETURN_IF_ERROR(CheckAdapterPath(path));
  Calibrator calibrator(model, device_mutex, plan, options, progress);
  KVRUN_RETURN_IF_ERROR(calibrator.SumUp(std::move(weights), device));
  Calibration calibration;
  calibration.adapter.kind = options.kind;
  calibration.adapter.fingerprint = ModelFingerprint(*model.file, model.config);
  KVRUN_ASSIGN_OR_RETURN(calibration.adapter.layers, calibrator.Compute());
  calibration.n_tokens = plan.n_tokens;
  calibration.n_pieces = plan.pieces.size();
  KVRUN_RETURN_IF_ERROR(WriteAdapter(calibration.adapter, path));
  return calibration;
}

}  // namespace kvrun
