#include "runtime/kv/math/adapter_file_header.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/model/half_float.h"

namespace kvrun {

void AddAdapterHeader(const AdapterHeader& header, AdapterChecksum& checksum) {
  checksum.Add(AdapterKindName(header.kind));
  checksum.Add(header.fingerprint);
  for (const uint32_t value : {header.rank, header.n_layers, header.key_dim}) checksum.Add(value);
  checksum.Add(std::as_bytes(std::span(header.energies)));
  if (header.version < 2) return;
  checksum.Add(static_cast<uint32_t>(header.reuse.size()));
  for (const ReuseRate& row : header.reuse) {
    checksum.Add(row.policy);
    for (const uint32_t value : {row.group_tokens, row.select_entries, row.n_ctx, row.reuse_groups})
      checksum.Add(value);
    checksum.Add(std::bit_cast<uint32_t>(row.rate));
  }
  checksum.Add(std::as_bytes(std::span(header.cluster_thresholds)));
  if (header.version < 3) return;
  checksum.Add(std::as_bytes(std::span(header.entry_means)));
  checksum.Add(std::as_bytes(std::span(header.layer_shares)));
  if (header.version < 4) return;
  checksum.Add(header.made_from);
  checksum.Add(header.measured_on);
}

std::string WrongInAdapter(const AdapterHeader& header) {
  const auto is_no_energy = [](float value) { return !std::isfinite(value); };
  const auto energy = std::find_if(header.energies.begin(), header.energies.end(), is_no_energy);
  if (energy != header.energies.end()) return fmt::format("an energy is {}", *energy);
  for (size_t i = 0; i < header.reuse.size(); ++i) {
    const ReuseRate& row = header.reuse[i];
    if (!(row.rate >= 0.0F && row.rate <= 1.0F)) return fmt::format("reuse rate {} is {}", i, row.rate);
    if (row.group_tokens == 0 || row.select_entries == 0 || row.reuse_groups == 0)
      return fmt::format("reuse rate {} is of an empty selection", i);
  }
  const std::vector<float>& means = header.entry_means;
  if (!means.empty() && means.size() != uint64_t{header.n_layers} * header.key_dim * 2)
    return fmt::format("it has {} mean values, which do not fit its layers", means.size());
  // They are kept as f16.
  const auto is_no_mean = [](float value) { return !std::isfinite(HalfToFloat(FloatToHalf(value))); };
  const auto mean = std::find_if(means.begin(), means.end(), is_no_mean);
  if (mean != means.end()) return fmt::format("a mean value is {}", *mean);
  const std::vector<float>& shares = header.layer_shares;
  if (!shares.empty() && shares.size() != header.n_layers)
    return fmt::format("it has {} shares of {} layers", shares.size(), header.n_layers);
  const auto is_no_share = [](float value) {
    return !(value >= adapter_format::kLeastShare && value <= adapter_format::kMostShare);
  };
  const auto share = std::find_if(shares.begin(), shares.end(), is_no_share);
  if (share != shares.end()) return fmt::format("a layer's share is {}", *share);
  const std::vector<float>& thresholds = header.cluster_thresholds;
  const size_t n_heads = thresholds.size() / header.n_layers;
  if (thresholds.size() % header.n_layers != 0 || (n_heads != 0 && header.key_dim % n_heads != 0))
    return fmt::format("it has {} cluster thresholds, which do not fit its layers", thresholds.size());
  const auto is_no_threshold = [](float value) { return !std::isfinite(value) || value < 0.0F; };
  const auto wrong = std::find_if(thresholds.begin(), thresholds.end(), is_no_threshold);
  return wrong == thresholds.end() ? "" : fmt::format("a cluster threshold is {}", *wrong);
}

}  // namespace kvrun
