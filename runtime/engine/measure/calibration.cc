#include "runtime/engine/measure/calibration.h"

#include <fmt/format.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "platform/base/units.h"
#include "platform/io/replace_file.h"
#include "runtime/engine/measure/calibration_time.h"
#include "runtime/engine/resident/resident_pass.h"
#include "runtime/engine/session/context_length.h"

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

// " (text 1: 12, text 2: 7)"; of many nothing.
std::string TextLengths(const CalibrationOptions& options) {
  constexpr size_t kMostNamed = 8;
  std::string lengths;
  if (options.texts.size() > kMostNamed) return lengths;
  for (size_t i = 0; i < options.texts.size(); ++i)
    lengths += fmt::format("{}text {}: {}", i == 0 ? " (" : ", ", i + 1, options.texts[i].size());
  return lengths.empty() ? lengths : lengths + ")";
}

// Fewer keys than columns leave directions that no key has.
Status CheckEnough(const CalibrationOptions& options, const CalibrationPlan& plan) {
  const uint64_t n_left_out = plan.pieces.size() * kCalibrationSinks;
  if (!plan.pieces.empty() && plan.n_tokens - n_left_out >= plan.rank) return Status::Ok();
  uint64_t n_given = 0;
  for (const auto& text : options.texts) n_given += text.size();
  return Invalid(
      fmt::format("too little text: {} token{}{}, of which {} count (the first {} of each piece and pieces "
                  "shorter than {} "
                  "do not); an adapter of rank {} needs {}: give longer texts, or ask for a smaller rank",
                  n_given, n_given == 1 ? "" : "s", TextLengths(options), plan.n_tokens - n_left_out,
                  kCalibrationSinks, kMinPieceTokens, plan.rank, plan.rank));
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

class Calibrator {
 public:
  // `sums`: what is there already. Pieces that are left out leave `plan` too.
  Calibrator(const Model& model, std::mutex* device_mutex, CalibrationPlan& plan,
             const CalibrationOptions& options, const ProgressCallback& progress, CalibrationSums sums)
      : model_(model),
        device_mutex_(device_mutex),
        plan_(plan),
        options_(options),
        progress_(progress),
        sums_(std::move(sums)),
        n_saved_pieces_(sums_.n_pieces),
        n_done_(sums_.n_tokens) {}
  Calibrator(const Calibrator&) = delete;
  Calibrator& operator=(const Calibrator&) = delete;
  ~Calibrator() {
    const std::lock_guard lock(*device_mutex_);
    pass_.reset();
  }

  const CalibrationSums& sums() const { return sums_; }

  Status SumUp(std::shared_ptr<const DeviceWeights> weights, Device& device) {
    if (sums_.n_pieces == plan_.pieces.size()) return Ask(plan_.n_tokens - 1);
    {
      const std::lock_guard lock(*device_mutex_);
      KVRUN_ASSIGN_OR_RETURN(pass_,
                             ResidentForwardPass::Create(model_, std::move(weights), device,
                                                         {.n_sequences = 1, .n_ctx = plan_.max_piece_tokens},
                                                         kCalibrationSinks));
    }
    sums_.layers.resize(model_.config.n_kv_layers());
    n_resumed_ = n_done_;
    begin_ = Clock::now();
    while (sums_.n_pieces < PiecesInTime(n_done_)) {
      const std::span<const TokenId> piece = plan_.pieces[sums_.n_pieces];
      KVRUN_RETURN_IF_ERROR(Prefill(piece));
      KVRUN_RETURN_IF_ERROR(EndPiece(piece));
    }
    plan_.pieces.resize(sums_.n_pieces);
    plan_.n_tokens = sums_.n_tokens;
    const std::lock_guard lock(*device_mutex_);
    pass_.reset();
    return Status::Ok();
  }

  Result<std::vector<LayerAdapter>> Compute() {
    std::vector<LayerAdapter> layers;
    for (const LayerTotals& totals : sums_.layers) {
      KVRUN_RETURN_IF_ERROR(Ask(plan_.n_tokens - 1));
      auto layer = ComputeAdapter(options_.kind, totals.View(), plan_.rank);
      if (!layer.ok()) return layer.status().WithContext(fmt::format("layer {}", layers.size()));
      layers.push_back(std::move(layer).value());
    }
    KVRUN_RETURN_IF_ERROR(Ask(plan_.n_tokens));
    return layers;
  }

  // "20000 tokens in 3 pieces of at most 8192": nothing of the time there was, so that the same pieces give
  // the same file.
  std::string MadeFrom() const {
    size_t longest = 0;
    for (const auto& piece : plan_.pieces) longest = std::max(longest, piece.size());
    const size_t n = plan_.pieces.size();
    return fmt::format("{} tokens in {} piece{} of at most {}", plan_.n_tokens, n, n == 1 ? "" : "s",
                       longest);
  }

  // Of whole pieces, where there are more than the file has. A disk that is full must not end what may take
  // hours: it is said in the end.
  void Save() {
    if (options_.checkpoint_path.empty() || !is_whole_ || sums_.n_pieces == n_saved_pieces_) return;
    const Status status = WriteSums(sums_, options_.checkpoint_path);
    if (status.ok()) n_saved_pieces_ = sums_.n_pieces;
    save_error_ = status.ok() ? "" : "the sums so far could not be saved: " + status.message();
    last_save_ = Clock::now();
  }
  const std::string& save_error() const { return save_error_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Of all, those that will have been summed up, by what tokens took so far.
  size_t PiecesInTime(uint64_t done) const {
    if (options_.limit_s <= 0.0) return plan_.pieces.size();
    const double spent_s = std::chrono::duration<double>(Clock::now() - begin_).count();
    const double token_s = done > n_resumed_ ? spent_s / static_cast<double>(done - n_resumed_) : 0.0;
    // Of the piece that has begun some tokens are done.
    const uint64_t n_begun = done - std::min(done, sums_.n_tokens);
    return PiecesThatFit(plan_.pieces, sums_.n_pieces, plan_.rank, token_s,
                         options_.limit_s - spent_s + token_s * static_cast<double>(n_begun));
  }

  Status Ask(uint64_t done) const {
    if (!progress_) return Status::Ok();
    uint64_t total = 0;
    const size_t n_pieces = std::max<size_t>(PiecesInTime(done), sums_.n_pieces + (done > sums_.n_tokens));
    for (const auto& piece : std::span(plan_.pieces).first(n_pieces)) total += piece.size();
    if (!progress_(done, total)) return Status::Ok();
    return {StatusCode::kCancelled, "the calibration was cancelled"};
  }

  Status Prefill(std::span<const TokenId> piece) {
    ForwardStep step;
    for (size_t begin = 0; begin < piece.size(); begin += step.size()) {
      KVRUN_RETURN_IF_ERROR(Ask(n_done_));
      size_t n_rows = std::min<size_t>(piece.size() - begin, pass_->max_rows());
      // Single rows are not summed up.
      if (begin + n_rows + 1 == piece.size()) --n_rows;
      step.Clear();
      step.Add(SpanKind::kPrompt, piece.subspan(begin, n_rows), static_cast<uint32_t>(begin), 0);
      const std::lock_guard lock(*device_mutex_);
      KVRUN_RETURN_IF_ERROR(pass_->Run(step, {}, {}));
      n_done_ += n_rows;
      n_undrained_ += n_rows;
      if (n_undrained_ >= options_.rows_per_drain) KVRUN_RETURN_IF_ERROR(DrainTo(&piece_));
    }
    return Status::Ok();
  }

  // The device's sums begin at zero for each piece: whether others were summed up in this run does not show.
  Status EndPiece(std::span<const TokenId> piece) {
    is_whole_ = false;
    {
      const std::lock_guard lock(*device_mutex_);
      if (n_undrained_ > 0) KVRUN_RETURN_IF_ERROR(DrainTo(piece_.empty() ? &sums_.layers : &piece_));
    }
    for (size_t i = 0; i < piece_.size(); ++i) sums_.layers[i].Add(piece_[i]);
    piece_.clear();
    ++sums_.n_pieces;
    sums_.n_tokens += piece.size();
    is_whole_ = true;
    if (std::chrono::duration<double>(Clock::now() - last_save_).count() >= options_.checkpoint_period_s)
      Save();
    return Status::Ok();
  }

  // Under the lock.
  Status DrainTo(std::vector<LayerTotals>* totals) {
    totals->resize(model_.config.n_kv_layers());
    for (uint32_t i = 0; i < totals->size(); ++i) {
      KVRUN_ASSIGN_OR_RETURN(const LayerSums sums, pass_->Sums(i));
      (*totals)[i].Add(sums);
    }
    n_undrained_ = 0;
    return pass_->ClearSums();
  }

  const Model& model_;
  std::mutex* device_mutex_;
  CalibrationPlan& plan_;
  const CalibrationOptions& options_;
  const ProgressCallback& progress_;
  std::unique_ptr<ResidentForwardPass> pass_;
  CalibrationSums sums_;
  bool is_whole_ = true;            // sums_ are those of whole pieces
  std::vector<LayerTotals> piece_;  // of the current piece, where it was drained before its end
  uint64_t n_saved_pieces_ = 0;
  Clock::time_point last_save_ = Clock::now();
  std::string save_error_;
  uint64_t n_done_ = 0;     // tokens
  uint64_t n_resumed_ = 0;  // of them, those that were done before begin_
  Clock::time_point begin_ = Clock::now();
  uint64_t n_undrained_ = 0;  // rows in the device's sums
};

// Sums of nothing yet, of this plan.
Result<CalibrationSums> EmptySums(const Model& model, const CalibrationPlan& plan) {
  CalibrationSums sums;
  KVRUN_ASSIGN_OR_RETURN(sums.fingerprint, model.Fingerprint());
  sums.texts = TextsHash(plan.pieces);
  sums.n_ctx = plan.n_ctx;
  sums.n_sinks = kCalibrationSinks;
  return sums;
}

// Why the calibration that `expected` begins cannot go on from `found`; empty: it can.
std::string WhyAnother(const CalibrationSums& found, const CalibrationSums& expected,
                       const ModelConfig& config, const CalibrationPlan& plan) {
  if (found.fingerprint != expected.fingerprint) return "it is of another model";
  if (found.n_ctx != expected.n_ctx) {
    return fmt::format("its pieces have {} tokens, not {}", found.n_ctx, expected.n_ctx);
  }
  if (found.texts != expected.texts) return "it is of other texts";
  const LayerTotals& shape = found.layers.front();
  if (found.n_sinks != expected.n_sinks || found.n_pieces > plan.pieces.size() ||
      found.layers.size() != config.n_kv_layers() || shape.n_kv_heads != config.n_kv_heads ||
      shape.head_dim != config.head_dim) {
    return "it was made by another version of kvrun";
  }
  return "";
}

Status NoCheckpoint(const std::string& path) {
  return Invalid(
      fmt::format("{} is not the file of an interrupted calibration, and this calibration would replace it, "
                  "as it keeps its sums under that name: move the file away, name another output, or give "
                  "--restart, which replaces it",
                  path));
}

Status AnotherCheckpoint(const std::string& path, uint64_t n_tokens, const std::string& why) {
  return Invalid(
      fmt::format("{} holds the sums of {} tokens of another calibration ({}): to go on with that one, give "
                  "the same command and texts to the same version of kvrun; to start anew, remove the file, "
                  "give --restart, or name another output",
                  path, n_tokens, why));
}

bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
}

Status CheckPaths(const Model& model, const CalibrationOptions& options, const std::string& path) {
  std::vector<std::string> others;
  for (const std::string& each : {path, options.checkpoint_path, options.sums_path}) {
    if (each.empty()) continue;
    if (model.file->HasName(each)) {
      return Invalid(
          fmt::format("{} is the model that is calibrated, and would be lost: name another file", each));
    }
    for (const std::string& other : others) {
      if (IsSameFile(each, other))
        return Invalid(fmt::format("{} would hold two results: name two files", each));
    }
    KVRUN_RETURN_IF_ERROR(CheckResultFile(each));
    others.push_back(each);
  }
  return Status::Ok();
}

// All that can fail once there may be something to save.
Status RunToTheEnd(Calibrator& calibrator, std::shared_ptr<const DeviceWeights> weights, Device& device,
                   const CalibrationOptions& options, const std::string& path, Calibration* calibration) {
  KVRUN_RETURN_IF_ERROR(calibrator.SumUp(std::move(weights), device));
  if (options.keeps_checkpoint) calibrator.Save();
  calibration->adapter.kind = options.kind;
  calibration->adapter.fingerprint = calibrator.sums().fingerprint;
  calibration->adapter.made_from = calibrator.MadeFrom();
  KVRUN_ASSIGN_OR_RETURN(calibration->adapter.layers, calibrator.Compute());
  if (!options.sums_path.empty()) KVRUN_RETURN_IF_ERROR(WriteSums(calibrator.sums(), options.sums_path));
  return WriteAdapter(calibration->adapter, path);
}

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
  plan.n_ctx = n_ctx;
  plan.rank = options.rank == 0 ? std::min(config.kv_dim(), kMaxDefaultRank) : options.rank;
  if (IsOfHeads(options.kind) && options.rank == 0) plan.rank -= plan.rank % config.n_kv_heads;
  if (plan.rank > config.kv_dim()) {
    return Invalid(
        fmt::format("an adapter of rank {} was asked for; this model's keys have {} elements: ask "
                    "for 1 to {}",
                    plan.rank, config.kv_dim(), config.kv_dim()));
  }
  if (IsOfHeads(options.kind) && (plan.rank == 0 || plan.rank % config.n_kv_heads != 0)) {
    return Invalid(
        fmt::format("an adapter of kind {} and rank {} was asked for; it has as many columns for each of "
                    "this model's {} KV heads: ask for a multiple of {}",
                    AdapterKindName(options.kind), plan.rank, config.n_kv_heads, config.n_kv_heads));
  }
  KVRUN_RETURN_IF_ERROR(CheckIds(options, config));
  for (const std::span<const TokenId> text : options.texts) CutIntoPieces(text, n_ctx, &plan);
  KVRUN_RETURN_IF_ERROR(CheckEnough(options, plan));
  return plan;
}

Result<FoundCheckpoint> FindCheckpoint(const Model& model, const CalibrationOptions& options,
                                       const CalibrationPlan& plan) {
  const std::string& path = options.checkpoint_path;
  if (path.empty()) return FoundCheckpoint{};
  auto sums = ReadSums(path);
  if (sums.status().code() == StatusCode::kNotFound) return FoundCheckpoint{};
  const auto anew = [](std::string note) { return FoundCheckpoint{{}, std::move(note)}; };
  if (options.restarts) return anew(fmt::format("starting anew, as asked, and not from {}", path));
  if (!sums.ok()) {
    KVRUN_ASSIGN_OR_RETURN(const bool is_ours, BeginsAsSums(path));
    if (!is_ours) return NoCheckpoint(path);
    return anew(fmt::format("starting anew: {}", sums.status().message()));
  }
  KVRUN_ASSIGN_OR_RETURN(const CalibrationSums empty, EmptySums(model, plan));
  const std::string why = WhyAnother(*sums, empty, model.config, plan);
  if (!why.empty()) return AnotherCheckpoint(path, sums->n_tokens, why);
  std::string note =
      fmt::format("going on from {}: {} of {} tokens are done", path, sums->n_tokens, plan.n_tokens);
  return FoundCheckpoint{std::move(sums).value(), std::move(note)};
}

Result<Calibration> CalibrateAdapter(const Model& model, std::shared_ptr<const DeviceWeights> weights,
                                     Device& device, std::mutex* device_mutex,
                                     const CalibrationOptions& options, const std::string& path,
                                     const ProgressCallback& progress) {
  KVRUN_ASSIGN_OR_RETURN(CalibrationPlan plan, PlanCalibration(options, model.config));
  KVRUN_RETURN_IF_ERROR(CheckPaths(model, options, path));
  KVRUN_ASSIGN_OR_RETURN(FoundCheckpoint found, FindCheckpoint(model, options, plan));
  Calibration calibration;
  calibration.n_tokens_given = plan.n_tokens;
  if (found.sums) {
    calibration.n_resumed_tokens = found.sums->n_tokens;
  } else {
    KVRUN_ASSIGN_OR_RETURN(found.sums, EmptySums(model, plan));
  }
  Calibrator calibrator(model, device_mutex, plan, options, progress, *std::move(found.sums));
  const Status status = RunToTheEnd(calibrator, std::move(weights), device, options, path, &calibration);
  if (!status.ok()) calibrator.Save();
  const std::string& save_error = calibrator.save_error();
  if (!status.ok())
    return save_error.empty() ? status : Status(status.code(), status.message() + "; " + save_error);
  if (!save_error.empty()) calibration.notes.push_back(save_error);
  if (!options.checkpoint_path.empty() && !options.keeps_checkpoint) unlink(options.checkpoint_path.c_str());
  calibration.n_tokens = plan.n_tokens;
  calibration.n_pieces = plan.pieces.size();
  return calibration;
}

}  // namespace kvrun
