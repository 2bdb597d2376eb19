// Adapter files, written: docs/formats/adapter.md.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "platform/io/replace_file.h"
#include "runtime/kv/math/adapter_file.h"
#include "runtime/kv/math/adapter_file_header.h"
#include "runtime/model/gguf_writer.h"

namespace kvrun {

namespace {

Result<std::vector<uint16_t>> Halves(std::span<const float> values, const std::string& name) {
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] = FloatToHalf(values[i]);
    if (std::isfinite(HalfToFloat(halves[i]))) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} holds {}, which f16 cannot hold", name, values[i]));
  }
  return halves;
}

Result<AdapterHeader> HeaderOf(const Adapter& adapter) {
  if (adapter.layers.empty()) return Status(StatusCode::kInvalidArgument, "the adapter has no layers");
  const LayerAdapter& first = adapter.layers.front();
  AdapterHeader header;
  header.kind = adapter.kind;
  header.fingerprint = adapter.fingerprint;
  header.rank = first.rank;
  header.n_layers = static_cast<uint32_t>(adapter.layers.size());
  header.key_dim = first.key_dim;
  header.reuse = adapter.reuse;
  header.cluster_thresholds = adapter.cluster_thresholds;
  header.entry_means = adapter.entry_means;
  header.layer_shares = adapter.layer_shares;
  header.made_from = adapter.made_from;
  header.measured_on = adapter.measured_on;
  for (const LayerAdapter& layer : adapter.layers) {
    if (layer.rank != header.rank || layer.key_dim != header.key_dim) {
      return Status(StatusCode::kInvalidArgument,
                    "the adapter's layers differ in their rank or in the size of their keys");
    }
    const size_t side = size_t{layer.rank} * layer.key_dim;
    KVRUN_CHECK(layer.key_side.size() == side && layer.query_side.size() == side);
    KVRUN_CHECK(layer.mean.size() == layer.key_dim);
    KVRUN_CHECK(layer.energy.size() == (first.energy.empty() ? 0 : layer.rank));
    header.energies.insert(header.energies.end(), layer.energy.begin(), layer.energy.end());
  }
  if (const std::string wrong = WrongInAdapter(header); !wrong.empty())
    return Status(StatusCode::kInvalidArgument, wrong);
  return header;
}

// Keys that are not there stand for empty arrays.
void SetMeasured(const AdapterHeader& header, GgufWriter& file) {
  if (!header.reuse.empty()) {
    std::vector<std::string> policies;
    std::vector<float> rates;
    for (const ReuseRate& row : header.reuse) {
      policies.push_back(row.policy);
      rates.push_back(row.rate);
    }
    const auto set_column = [&](std::string_view key, uint32_t ReuseRate::*column) {
      std::vector<uint32_t> values;
      for (const ReuseRate& row : header.reuse) values.push_back(row.*column);
      file.Set(key, values);
    };
    file.Set(adapter_format::kReusePolicyKey, policies);
    set_column(adapter_format::kReuseGroupKey, &ReuseRate::group_tokens);
    set_column(adapter_format::kReuseSelectKey, &ReuseRate::select_entries);
    set_column(adapter_format::kReuseCtxKey, &ReuseRate::n_ctx);
    set_column(adapter_format::kReuseCapacityKey, &ReuseRate::reuse_groups);
    file.Set(adapter_format::kReuseRateKey, rates);
  }
  if (!header.cluster_thresholds.empty()) file.Set(adapter_format::kThresholdsKey, header.cluster_thresholds);
  if (!header.entry_means.empty()) file.Set(adapter_format::kMeansKey, header.entry_means);
  if (!header.layer_shares.empty()) file.Set(adapter_format::kSharesKey, header.layer_shares);
  if (!header.made_from.empty()) file.Set(adapter_format::kMadeFromKey, header.made_from);
  if (!header.measured_on.empty()) file.Set(adapter_format::kMeasuredOnKey, header.measured_on);
}

Status AddTensors(const Adapter& adapter, GgufWriter& file, AdapterChecksum& checksum) {
  const auto add = [&](size_t layer, std::string_view part, const std::vector<float>& values,
                       std::vector<uint64_t> shape) {
    const std::string name = AdapterTensorName(layer, part);
    KVRUN_ASSIGN_OR_RETURN(const std::vector<uint16_t> halves, Halves(values, name));
    checksum.Add(std::as_bytes(std::span(halves)));
    file.AddTensor(name, TensorType::kF16, std::move(shape), std::as_bytes(std::span(halves)));
    return Status::Ok();
  };
  for (size_t i = 0; i < adapter.layers.size(); ++i) {
    const LayerAdapter& layer = adapter.layers[i];
    KVRUN_RETURN_IF_ERROR(add(i, "key_side", layer.key_side, {layer.rank, layer.key_dim}));
    if (SidesDiffer(adapter.kind)) {
      KVRUN_RETURN_IF_ERROR(add(i, "query_side", layer.query_side, {layer.rank, layer.key_dim}));
    }
    if (TakesMeanOff(adapter.kind)) KVRUN_RETURN_IF_ERROR(add(i, "mean", layer.mean, {layer.key_dim}));
  }
  return Status::Ok();
}

}  // namespace

Status WriteAdapter(const Adapter& adapter, const std::string& path) {
  const std::string doing = fmt::format("cannot write the adapter {}", path);
  const auto header = HeaderOf(adapter);
  if (!header.ok()) return header.status().WithContext(doing);
  GgufWriter file;
  file.Set("general.architecture", adapter_format::kArchitecture);
  file.Set(adapter_format::kVersionKey, adapter_format::kVersion);
  file.Set(adapter_format::kKindKey, AdapterKindName(header->kind));
  file.Set(adapter_format::kFingerprintKey, header->fingerprint);
  file.Set(adapter_format::kRankKey, header->rank);
  file.Set(adapter_format::kLayersKey, header->n_layers);
  file.Set(adapter_format::kKeyDimKey, header->key_dim);
  file.Set(adapter_format::kEnergiesKey, header->energies);
  SetMeasured(*header, file);
  AdapterChecksum checksum;
  AddAdapterHeader(*header, checksum);
  if (const Status status = AddTensors(adapter, file, checksum); !status.ok())
    return status.WithContext(doing);
  file.Set(adapter_format::kChecksumKey, checksum.text());
  const std::vector<std::byte> bytes = file.Finish();
  const std::span<const std::byte> parts[] = {bytes};
  return ReplaceResultFile(path, parts);
}

}  // namespace kvrun
