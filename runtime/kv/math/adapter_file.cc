// Adapter files: docs/formats/adapter.md.
#include "runtime/kv/math/adapter_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/math/adapter_file_header.h"
#include "runtime/model/gguf.h"

namespace kvrun {

namespace {

constexpr std::string_view kWhatToDo = "make it again, or run without it";

Status Damaged(const std::string& path, std::string_view why) {
  return {StatusCode::kCorrupt, fmt::format("{}: the adapter is damaged ({}): {}", path, why, kWhatToDo)};
}

Status ReadReuse(const GgufFile& file, std::vector<ReuseRate>* rows) {
  if (!file.Has(adapter_format::kReusePolicyKey)) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::string_view> policies,
                         file.Strings(adapter_format::kReusePolicyKey));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<float> rates, file.Floats(adapter_format::kReuseRateKey));
  if (rates.size() != policies.size())
    return Damaged(file.name(), "its columns of reuse rates differ in length");
  rows->resize(policies.size());
  for (size_t i = 0; i < rows->size(); ++i) {
    (*rows)[i].policy = policies[i];
    (*rows)[i].rate = rates[i];
  }
  const std::pair<std::string_view, uint32_t ReuseRate::*> columns[] = {
      {adapter_format::kReuseGroupKey, &ReuseRate::group_tokens},
      {adapter_format::kReuseSelectKey, &ReuseRate::select_entries},
      {adapter_format::kReuseCtxKey, &ReuseRate::n_ctx},
      {adapter_format::kReuseCapacityKey, &ReuseRate::reuse_groups}};
  for (const auto& [key, column] : columns) {
    KVRUN_ASSIGN_OR_RETURN(const std::vector<int32_t> values, file.Ints(key));
    if (values.size() != rows->size())
      return Damaged(file.name(), "its columns of reuse rates differ in length");
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] < 0) return Damaged(file.name(), fmt::format("{} holds {}", key, values[i]));
      (*rows)[i].*column = static_cast<uint32_t>(values[i]);
    }
  }
  return Status::Ok();
}

Status ReadMeasured(const GgufFile& file, AdapterHeader* header) {
  KVRUN_RETURN_IF_ERROR(ReadReuse(file, &header->reuse));
  if (file.Has(adapter_format::kThresholdsKey)) {
    KVRUN_ASSIGN_OR_RETURN(header->cluster_thresholds, file.Floats(adapter_format::kThresholdsKey));
  }
  if (header->version >= 3 && file.Has(adapter_format::kMeansKey)) {
    KVRUN_ASSIGN_OR_RETURN(header->entry_means, file.Floats(adapter_format::kMeansKey));
  }
  if (header->version >= 3 && file.Has(adapter_format::kSharesKey)) {
    KVRUN_ASSIGN_OR_RETURN(header->layer_shares, file.Floats(adapter_format::kSharesKey));
  }
  if (header->version >= 4 && file.Has(adapter_format::kMadeFromKey)) {
    KVRUN_ASSIGN_OR_RETURN(header->made_from, file.String(adapter_format::kMadeFromKey));
  }
  if (header->version >= 4 && file.Has(adapter_format::kMeasuredOnKey)) {
    KVRUN_ASSIGN_OR_RETURN(header->measured_on, file.String(adapter_format::kMeasuredOnKey));
  }
  return Status::Ok();
}

Result<AdapterHeader> ReadHeader(const GgufFile& file) {
  const std::string& path = file.name();
  const auto architecture = file.String("general.architecture");
  if (!architecture.ok() || *architecture != adapter_format::kArchitecture) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is not an adapter of kvrun but {}", path,
                              architecture.ok() ? fmt::format("a file of '{:.40}'", *architecture)
                                                : "another kind of GGUF file"));
  }
  KVRUN_ASSIGN_OR_RETURN(const uint32_t version, file.U32(adapter_format::kVersionKey));
  if (version < adapter_format::kOldestVersion || version > adapter_format::kVersion) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: the adapter is of version {}, and this kvrun reads versions {} to {}: "
                              "make it again with kvadapt calibrate",
                              path, version, adapter_format::kOldestVersion, adapter_format::kVersion));
  }
  AdapterHeader header;
  header.version = version;
  KVRUN_ASSIGN_OR_RETURN(const std::string_view kind, file.String(adapter_format::kKindKey));
  const auto known_kind = FindAdapterKind(kind);
  if (!known_kind.ok()) return Damaged(path, known_kind.status().message());
  header.kind = *known_kind;
  KVRUN_ASSIGN_OR_RETURN(header.fingerprint, file.String(adapter_format::kFingerprintKey));
  KVRUN_ASSIGN_OR_RETURN(header.rank, file.U32(adapter_format::kRankKey));
  KVRUN_ASSIGN_OR_RETURN(header.n_layers, file.U32(adapter_format::kLayersKey));
  KVRUN_ASSIGN_OR_RETURN(header.key_dim, file.U32(adapter_format::kKeyDimKey));
  KVRUN_ASSIGN_OR_RETURN(header.energies, file.Floats(adapter_format::kEnergiesKey));
  if (!header.energies.empty() && header.energies.size() != uint64_t{header.n_layers} * header.rank) {
    return Damaged(path, fmt::format("it has {} energies, not one for each column of each layer",
                                     header.energies.size()));
  }
  if (header.rank == 0 || header.rank > header.key_dim || header.n_layers == 0) {
    return Damaged(path, fmt::format("it has rank {} of {} and {} layers", header.rank, header.key_dim,
                                     header.n_layers));
  }
  if (version >= 2) KVRUN_RETURN_IF_ERROR(ReadMeasured(file, &header));
  if (const std::string wrong = WrongInAdapter(header); !wrong.empty()) return Damaged(path, wrong);
  return header;
}

AdapterFit FitOf(const AdapterHeader& header) {
  return {std::string(header.fingerprint), header.n_layers, header.key_dim, header.rank};
}

// Is it of the model, and large enough?
Status CheckFits(const std::string& path, const AdapterFit& file, const AdapterFit& needed) {
  if (file.fingerprint != needed.fingerprint || file.n_layers != needed.n_layers ||
      file.key_dim != needed.key_dim) {
    return {StatusCode::kInvalidArgument,
            fmt::format(
                "{}: the adapter is of another model (fingerprint {:.40}, {} layers, keys of {} elements) "
                "than the one that runs (fingerprint {}, {} layers, keys of {} elements): give that "
                "model's adapter, or none",
                path, file.fingerprint, file.n_layers, file.key_dim, needed.fingerprint, needed.n_layers,
                needed.key_dim)};
  }
  if (needed.rank == 0 || needed.rank > file.rank) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format("{}: the adapter has rank {}, and {} was asked for: ask for 1 to {}, or give a larger "
                    "adapter",
                    path, file.rank, needed.rank, file.rank)};
  }
  return Status::Ok();
}

// What the reader of all layers finds out on its way.
struct Findings {
  AdapterChecksum checksum;
  std::string wrong;  // the first value that is no number; empty: there is none
};

// Of f16: infinities and NaN have all bits of the exponent.
bool IsFinite(uint16_t half) { return (half & 0x7C00U) != 0x7C00U; }

void FindInfinite(std::span<const std::byte> halves, const std::string& name, std::string* wrong) {
  for (size_t at = 0; wrong->empty() && at < halves.size(); at += sizeof(uint16_t)) {
    uint16_t half = 0;
    std::memcpy(&half, halves.data() + at, sizeof half);
    if (!IsFinite(half)) *wrong = fmt::format("{} holds {}", name, HalfToFloat(half));
  }
}

// The first `n_columns` of each of `n_rows` rows.
Result<std::vector<float>> ReadTensor(const GgufFile& file, const std::string& name, uint32_t n_columns,
                                      uint64_t file_columns, uint64_t n_rows, Findings& findings) {
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) return Damaged(file.name(), fmt::format("{} is missing", name));
  if (tensor->type != TensorType::kF16 || tensor->shape[0] != file_columns ||
      tensor->elements() != file_columns * n_rows) {
    return Damaged(file.name(), fmt::format("{} has another type or shape", name));
  }
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.ReadAll(*tensor));
  findings.checksum.Add(bytes);
  FindInfinite(bytes, name, &findings.wrong);
  std::vector<float> values(n_rows * n_columns);
  const size_t row_bytes = file_columns * sizeof(uint16_t);
  for (uint64_t row = 0; row < n_rows; ++row) {
    DecodeTensor(TensorType::kF16, std::span(bytes).subspan(row * row_bytes, row_bytes),
                 std::span(values).subspan(row * n_columns, n_columns));
  }
  return values;
}

Result<LayerAdapter> ReadLayer(const GgufFile& file, const AdapterHeader& header, uint32_t index,
                               uint32_t rank, Findings& findings) {
  LayerAdapter layer;
  layer.key_dim = header.key_dim;
  layer.rank = rank;
  const auto side = [&](std::string_view part) {
    return ReadTensor(file, AdapterTensorName(index, part), rank, header.rank, header.key_dim, findings);
  };
  KVRUN_ASSIGN_OR_RETURN(layer.key_side, side("key_side"));
  layer.query_side = layer.key_side;
  if (SidesDiffer(header.kind)) {
    KVRUN_ASSIGN_OR_RETURN(layer.query_side, side("query_side"));
  }
  layer.mean.resize(header.key_dim);
  if (TakesMeanOff(header.kind)) {
    KVRUN_ASSIGN_OR_RETURN(layer.mean, ReadTensor(file, AdapterTensorName(index, "mean"), header.key_dim,
                                                  header.key_dim, 1, findings));
  }
  if (!header.energies.empty()) {
    const auto begin = header.energies.begin() + static_cast<std::ptrdiff_t>(uint64_t{index} * header.rank);
    layer.energy.assign(begin, begin + rank);
  }
  return layer;
}

// One that is cut, empty or no GGUF at all is found here.
Result<std::unique_ptr<GgufFile>> OpenAdapter(const std::string& path) {
  auto file = GgufFile::Open(path);
  if (file.status().code() != StatusCode::kCorrupt) return file;
  return Status(StatusCode::kCorrupt, fmt::format("{}: {}", file.status().message(), kWhatToDo));
}

// A key that lacks is damage, not a missing file.
Result<AdapterHeader> ReadHeaderOf(const GgufFile& file) {
  auto header = ReadHeader(file);
  if (header.status().code() == StatusCode::kNotFound) return Damaged(file.name(), header.status().message());
  return header;
}

// `rank` columns of each layer.
Result<Adapter> ReadLayers(const GgufFile& file, const AdapterHeader& header, uint32_t rank) {
  Findings findings;
  AddAdapterHeader(header, findings.checksum);
  Adapter adapter;
  adapter.kind = header.kind;
  adapter.fingerprint = header.fingerprint;
  adapter.reuse = header.reuse;
  adapter.cluster_thresholds = header.cluster_thresholds;
  adapter.entry_means = header.entry_means;
  adapter.layer_shares = header.layer_shares;
  adapter.made_from = header.made_from;
  adapter.measured_on = header.measured_on;
  for (uint32_t i = 0; i < header.n_layers; ++i) {
    KVRUN_ASSIGN_OR_RETURN(LayerAdapter layer, ReadLayer(file, header, i, rank, findings));
    adapter.layers.push_back(std::move(layer));
  }
  const auto expected = file.String(adapter_format::kChecksumKey);
  if (!expected.ok()) return Damaged(file.name(), "its checksum is missing");
  if (findings.checksum.text() != *expected) return Damaged(file.name(), "its checksum is wrong");
  if (!findings.wrong.empty()) return Damaged(file.name(), findings.wrong);
  return adapter;
}

// The first columns stay; what the others took is free then.
void CutColumns(std::vector<float>* side, uint32_t key_dim, uint32_t from, uint32_t to) {
  std::vector<float> cut(size_t{key_dim} * to);
  for (size_t row = 0; row < key_dim; ++row) {
    std::copy_n(side->begin() + static_cast<std::ptrdiff_t>(row * from), to,
                cut.begin() + static_cast<std::ptrdiff_t>(row * to));
  }
  *side = std::move(cut);
}

void CutToRank(LayerAdapter* layer, uint32_t rank) {
  if (rank == layer->rank) return;
  CutColumns(&layer->key_side, layer->key_dim, layer->rank, rank);
  CutColumns(&layer->query_side, layer->key_dim, layer->rank, rank);
  if (!layer->energy.empty()) layer->energy.resize(rank);
  layer->rank = rank;
}

}  // namespace
Result<Adapter> ReadAdapter(const std::string& path, const std::string& fingerprint, uint32_t n_layers,
                            uint32_t key_dim, uint32_t rank) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenAdapter(path));
  KVRUN_ASSIGN_OR_RETURN(const AdapterHeader header, ReadHeaderOf(*file));
  KVRUN_RETURN_IF_ERROR(CheckFits(path, FitOf(header), {fingerprint, n_layers, key_dim, rank}));
  return ReadLayers(*file, header, rank);
}

Result<Adapter> ReadWholeAdapter(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenAdapter(path));
  KVRUN_ASSIGN_OR_RETURN(const AdapterHeader header, ReadHeaderOf(*file));
  return ReadLayers(*file, header, header.rank);
}

Result<AdapterFile::Content> AdapterFile::Read(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenAdapter(path));
  KVRUN_ASSIGN_OR_RETURN(const AdapterHeader header, ReadHeaderOf(*file));
  return Content{FitOf(header), ReadLayers(*file, header, header.rank)};
}

const Result<AdapterFile::Content>& AdapterFile::content() {
  if (!content_) content_.emplace(Read(path_));
  return *content_;
}

Result<const Adapter*> AdapterFile::Whole() {
  if (!content().ok()) return content().status();
  const Result<Adapter>& adapter = content()->adapter;
  if (!adapter.ok()) return adapter.status();
  return &*adapter;
}

// In the order of ReadAdapter: a damaged file of another model is another model's.
Status AdapterFile::Check(const AdapterFit& needed) {
  if (!content().ok()) return content().status();
  KVRUN_RETURN_IF_ERROR(CheckFits(path_, content()->fit, needed));
  return content()->adapter.status();
}

Result<Adapter> AdapterFile::Take(const AdapterFit& needed) && {
  if (!content_) {
    return ReadAdapter(path_, needed.fingerprint, needed.n_layers, needed.key_dim, needed.rank);
  }
  KVRUN_RETURN_IF_ERROR(Check(needed));
  Adapter adapter = std::move((*content_)->adapter).value();
  for (LayerAdapter& layer : adapter.layers) CutToRank(&layer, needed.rank);
  return adapter;
}

}  // namespace kvrun
