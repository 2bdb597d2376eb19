// What a candidate costs in quality, measured: tokens of texts fed one by one after a long prefill, against
// all KV in memory. The texts are prefilled once for all candidates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offline/probe.h"
#include "offline/solver.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/measure/evaluation.h"

namespace kvrun::offline {

struct QualityMeterOptions {
  uint32_t ctx = 0;       // tokens of a piece
  uint32_t n_steps = 0;   // of these, the last are fed one by one
  uint32_t n_pieces = 0;  // of the whole text, as many as it has room for; of several an even number
  // Every second of them is for the search, the others are held out; of a single one nothing is.
  bool held_out = false;
  std::span<const TokenId> ids;  // pieces are taken from it, spread evenly; read by Create only
  uint64_t memory_bytes = 0;     // for the pieces' KV; 0: what is available
  // Asked while a piece is read, of how many of its tokens are: true where it would end too late. The pieces
  // before it are kept then; without any that is kCancelled. May be empty.
  std::function<bool(uint64_t done, uint64_t total)> is_too_late = {};
};

// Pieces whose KV (f16) and logits fit into memory at a time. kOutOfMemory where not one does. What a device
// of its own memory has is not asked: it refuses what does not fit there. `memory_bytes` as above.
Result<uint64_t> MostPieces(const Engine& engine, uint32_t n_ctx, uint32_t n_steps, uint64_t memory_bytes);

class QualityMeter {
 public:
  // kInvalidArgument where the text is shorter than a piece: the message says by how much. Holds the KV of
  // all pieces on the device: fewer pieces where memory has no room for more.
  static Result<std::unique_ptr<QualityMeter>> Create(Engine& engine, const QualityMeterOptions& options,
                                                      const OfflineProgress& progress);

  // Means over the pieces. One sequence, whatever the batch.
  Result<Quality> Measure(const KvSettings& settings, const std::function<bool()>& is_cancelled);
  size_t n_pieces() const { return pieces_.size(); }

 private:
  std::vector<std::unique_ptr<Evaluation>> pieces_;
  uint32_t n_steps_ = 0;
};

}  // namespace kvrun::offline
