// Adapters of K for all layers of a model, computed from its keys and queries on texts, and written to a
// file. Source: KVSwap, section 3.2.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/measure/calibration_sums.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/session/session.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/model/model.h"

namespace kvrun {

// As in the reference simulation: the first entries of each piece are left out of means and covariances.
inline constexpr uint32_t kCalibrationSinks = 4;
// What is shorter says nothing: most of it would be left out.
inline constexpr uint32_t kMinPieceTokens = 2 * kCalibrationSinks;
inline constexpr uint32_t kMaxDefaultRank = 256;

struct CalibrationOptions {
  AdapterKind kind = AdapterKind::kQueryCentred;
  uint32_t rank = 0;                            // 0: min(key_dim, kMaxDefaultRank)
  uint32_t n_ctx = 0;                           // of a piece; 0: DefaultPieceTokens
  std::vector<std::span<const TokenId>> texts;  // used during the call only
  // The device's sums are float32. After so many rows (64 steps) they are added to sums in double precision
  // on the host, so that rounding does not grow with the length of the texts.
  uint32_t rows_per_drain = 16384;
  // Where the sums of whole pieces are kept until the adapters are written, at the end of a piece after so
  // long and when the calibration ends early; the same texts then go on from there. Empty: nowhere.
  std::string checkpoint_path;
  double checkpoint_period_s = 30.0;
  bool restarts = false;          // what the checkpoint holds is not used
  bool keeps_checkpoint = false;  // it is there in the end too, with all sums: the caller removes it
  std::string sums_path;          // where the sums go too that the adapters are computed from; empty: nowhere
  // Pieces that would not end within so many seconds are left out, but for those that `rank` needs; 0: none.
  double limit_s = 0.0;
};

struct Calibration {
  Adapter adapter;
  uint64_t n_tokens = 0;  // in pieces
  uint64_t n_pieces = 0;
  uint64_t n_tokens_given = 0;     // in all pieces, those too for which there was no time
  uint64_t n_resumed_tokens = 0;   // of them, those that came with the checkpoint
  std::vector<std::string> notes;  // for people
};

// What a session's context would be (keys depend on their positions: short pieces show few of them), as long
// as a piece's f16 KV takes no more than 512 MiB. Everything else has the same size for every piece.
uint32_t DefaultPieceTokens(const ModelConfig& config);

// What the options come to, checked; needs no device.
struct CalibrationPlan {
  uint32_t rank = 0;
  uint32_t n_ctx = 0;
  std::vector<std::span<const TokenId>> pieces;  // at least kMinPieceTokens each
  uint32_t max_piece_tokens = 0;
  uint64_t n_tokens = 0;
};
Result<CalibrationPlan> PlanCalibration(const CalibrationOptions& options, const ModelConfig& config);

// What CalibrateAdapter will go on from.
struct FoundCheckpoint {
  std::optional<CalibrationSums> sums;  // none: it begins anew
  std::string note;                     // that it goes on, or why it does not; empty where there is no file
};
// Refuses, unless it `restarts`, what would be lost, as it is replaced and removed in the end: what is no
// checkpoint, and what another calibration goes on from. A damaged checkpoint is no loss.
Result<FoundCheckpoint> FindCheckpoint(const Model& model, const CalibrationOptions& options,
                                       const CalibrationPlan& plan);

// Prefills each piece from an empty context. Takes the mutex while it uses the device, and not while it asks
// `progress`, in tokens over all pieces that there is time for, as far as is known (the last of them counts
// when the adapters are computed). There is no file where the answer is not ok, but for the checkpoint; that
// `path` and the others can be written is found before anything is computed.
Result<Calibration> CalibrateAdapter(const Model& model, std::shared_ptr<const DeviceWeights> weights,
                                     Device& device, std::mutex* device_mutex,
                                     const CalibrationOptions& options, const std::string& path,
                                     const ProgressCallback& progress);

}  // namespace kvrun
