// The sums over a model's keys and queries that its adapters are computed from, in double precision, and
// their file: what `kvadapt calibrate --dump-gram` writes, and what an interrupted calibration goes on from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/model/model_config.h"
#include "runtime/model/tokenizer.h"

namespace kvrun {

// Of one layer; arrays as those of SumsOf.
struct LayerTotals {
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint64_t n_keys = 0;
  uint64_t n_queries = 0;
  std::vector<double> keys;
  std::vector<double> queries;

  void Add(const LayerSums& sums);
  void Add(const LayerTotals& totals);
  PreciseLayerSums View() const;
  bool operator==(const LayerTotals&) const = default;
};

struct CalibrationSums {
  std::string fingerprint;  // of the model
  std::string texts;        // TextsHash of all pieces
  uint32_t n_ctx = 0;       // that the texts were cut by
  uint32_t n_sinks = 0;     // left out of each piece
  uint64_t n_pieces = 0;    // the first so many are in the sums, whole
  uint64_t n_tokens = 0;    // in those pieces
  std::vector<LayerTotals> layers;
};

// What such a file's general.architecture is.
inline constexpr std::string_view kSumsArchitecture = "kvrun-sums";

// 32 hexadecimal digits, of the pieces' lengths and ids in their order.
std::string TextsHash(std::span<const std::span<const TokenId>> pieces);

// docs/formats/sums.md. Written beside the target and renamed.
Status WriteSums(const CalibrationSums& sums, const std::string& path);
// Refuses what is damaged or no such file, naming it.
Result<CalibrationSums> ReadSums(const std::string& path);
// Whether a file begins as such files do, damaged or not, so that nothing is lost where sums take its place.
// An empty file does; what is no file, or is not there, is not looked at.
Result<bool> BeginsAsSums(const std::string& path);

}  // namespace kvrun
