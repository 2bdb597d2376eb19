// What an adapter's file has beside its tensors. Internal to its reader and its writer.
#pragma once

#include <fmt/format.h>
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/kv/math/adapter.h"

namespace kvrun {

namespace adapter_format {

inline constexpr std::string_view kArchitecture = "kvrun-adapter";
inline constexpr uint32_t kVersion = 4;  // 3: does not say what it was made from; 2: without means and shares
inline constexpr uint32_t kOldestVersion = 1;  // without reuse rates and thresholds
inline constexpr std::string_view kVersionKey = "kvrun-adapter.version";
inline constexpr std::string_view kKindKey = "kvrun-adapter.kind";
inline constexpr std::string_view kFingerprintKey = "kvrun-adapter.fingerprint";
inline constexpr std::string_view kRankKey = "kvrun-adapter.rank";
inline constexpr std::string_view kLayersKey = "kvrun-adapter.layers";
inline constexpr std::string_view kKeyDimKey = "kvrun-adapter.key_dim";
inline constexpr std::string_view kEnergiesKey = "kvrun-adapter.energies";
inline constexpr std::string_view kReusePolicyKey = "kvrun-adapter.reuse.policy";
inline constexpr std::string_view kReuseGroupKey = "kvrun-adapter.reuse.group";
inline constexpr std::string_view kReuseSelectKey = "kvrun-adapter.reuse.select";
inline constexpr std::string_view kReuseCtxKey = "kvrun-adapter.reuse.ctx";
inline constexpr std::string_view kReuseCapacityKey = "kvrun-adapter.reuse.capacity";
inline constexpr std::string_view kReuseRateKey = "kvrun-adapter.reuse.rate";
inline constexpr std::string_view kThresholdsKey = "kvrun-adapter.cluster_thresholds";
inline constexpr std::string_view kMeansKey = "kvrun-adapter.entry_means";
inline constexpr std::string_view kSharesKey = "kvrun-adapter.layer_shares";
inline constexpr std::string_view kMadeFromKey = "kvrun-adapter.made_from";
inline constexpr std::string_view kMeasuredOnKey = "kvrun-adapter.measured_on";
inline constexpr std::string_view kChecksumKey = "kvrun-adapter.checksum";

// Of what a layer may have, beside the mean of all.
inline constexpr float kLeastShare = 0.01F;
inline constexpr float kMostShare = 100.0F;

}  // namespace adapter_format

inline std::string AdapterTensorName(size_t layer, std::string_view part) {
  return fmt::format("blk.{}.{}", layer, part);
}

// The checksum of what a reader relies on, in the file's order. A byte of a tensor that flips changes scores
// and is seen nowhere else.
class AdapterChecksum {
 public:
  void Add(std::span<const std::byte> bytes) {
    value_ = XXH3_64bits_withSeed(bytes.data(), bytes.size(), value_);
  }
  void Add(std::string_view text) { Add(std::as_bytes(std::span(text.data(), text.size()))); }
  void Add(uint32_t value) { Add(std::as_bytes(std::span(&value, 1))); }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0;
};

// What of an adapter is not in its tensors.
struct AdapterHeader {
  uint32_t version = adapter_format::kVersion;
  AdapterKind kind = AdapterKind::kPlain;
  std::string_view fingerprint;
  uint32_t rank = 0;
  uint32_t n_layers = 0;
  uint32_t key_dim = 0;
  std::vector<float> energies;  // [n_layers, rank], or empty
  std::vector<ReuseRate> reuse;
  std::vector<float> cluster_thresholds;
  std::vector<float> entry_means;
  std::vector<float> layer_shares;
  std::string made_from;
  std::string measured_on;
};

void AddAdapterHeader(const AdapterHeader& header, AdapterChecksum& checksum);
// What no measurement can have given: of files to be read and to be written. Empty: nothing.
std::string WrongInAdapter(const AdapterHeader& header);

}  // namespace kvrun
