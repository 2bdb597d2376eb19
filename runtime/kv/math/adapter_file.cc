// Adapter files: docs/formats/adapter.md.
#include "runtime/kv/math/adapter_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "platform/io/replace_file.h"
#include "runtime/model/gguf.h"
#include "runtime/model/gguf_writer.h"

namespace kvrun {
namespace {

constexpr std::string_view kArchitecture = "kvrun-adapter";
constexpr uint32_t kVersion = 4;        // 3: does not say what it was made from; 2: without means and shares
constexpr uint32_t kOldestVersion = 1;  // without reuse rates and thresholds
constexpr std::string_view kVersionKey = "kvrun-adapter.version";
constexpr std::string_view kKindKey = "kvrun-adapter.kind";
constexpr std::string_view kFingerprintKey = "kvrun-adapter.fingerprint";
constexpr std::string_view kRankKey = "kvrun-adapter.rank";
constexpr std::string_view kLayersKey = "kvrun-adapter.layers";
constexpr std::string_view kKeyDimKey = "kvrun-adapter.key_dim";
constexpr std::string_view kEnergiesKey = "kvrun-adapter.energies";
constexpr std::string_view kReusePolicyKey = "kvrun-adapter.reuse.policy";
constexpr std::string_view kReuseGroupKey = "kvrun-adapter.reuse.group";
constexpr std::string_view kReuseSelectKey = "kvrun-adapter.reuse.select";
constexpr std::string_view kReuseCtxKey = "kvrun-adapter.reuse.ctx";
constexpr std::string_view kReuseCapacityKey = "kvrun-adapter.reuse.capacity";
constexpr std::string_view kReuseRateKey = "kvrun-adapter.reuse.rate";
constexpr std::string_view kThresholdsKey = "kvrun-adapter.cluster_thresholds";
constexpr std::string_view kMeansKey = "kvrun-adapter.entry_means";
constexpr std::string_view kSharesKey = "kvrun-adapter.layer_shares";
constexpr std::string_view kMadeFromKey = "kvrun-adapter.made_from";
constexpr std::string_view kMeasuredOnKey = "kvrun-adapter.measured_on";
constexpr std::string_view kChecksumKey = "kvrun-adapter.checksum";

// Of what a layer may have, beside the mean of all.
constexpr float kLeastShare = 0.01F;
constexpr float kMostShare = 100.0F;

std::string TensorName(size_t layer, std::string_view part) { return fmt::format("blk.{}.{}", layer, part); }

// The checksum of what a reader relies on, in the file's order. A byte of a tensor that flips changes scores
// and is seen nowhere else.
class Checksum {
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
struct Header {
  uint32_t version = kVersion;
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

void AddHeader(const Header& header, Checksum& checksum) {
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

// What no measurement can have given: of files to be read and to be written. Empty: nothing.
std::string WrongIn(const Header& header) {
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
  const auto is_no_share = [](float value) { return !(value >= kLeastShare && value <= kMostShare); };
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

// --- Writing -----------------------------------------------------------------------------------------------

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

Result<Header> HeaderOf(const Adapter& adapter) {
  if (adapter.layers.empty()) return Status(StatusCode::kInvalidArgument, "the adapter has no layers");
  const LayerAdapter& first = adapter.layers.front();
  Header header;
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
  if (const std::string wrong = WrongIn(header); !wrong.empty())
    return Status(StatusCode::kInvalidArgument, wrong);
  return header;
}

// Keys that are not there stand for empty arrays.
void SetMeasured(const Header& header, GgufWriter& file) {
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
    file.Set(kReusePolicyKey, policies);
    set_column(kReuseGroupKey, &ReuseRate::group_tokens);
    set_column(kReuseSelectKey, &ReuseRate::select_entries);
    set_column(kReuseCtxKey, &ReuseRate::n_ctx);
    set_column(kReuseCapacityKey, &ReuseRate::reuse_groups);
    file.Set(kReuseRateKey, rates);
  }
  if (!header.cluster_thresholds.empty()) file.Set(kThresholdsKey, header.cluster_thresholds);
  if (!header.entry_means.empty()) file.Set(kMeansKey, header.entry_means);
  if (!header.layer_shares.empty()) file.Set(kSharesKey, header.layer_shares);
  if (!header.made_from.empty()) file.Set(kMadeFromKey, header.made_from);
  if (!header.measured_on.empty()) file.Set(kMeasuredOnKey, header.measured_on);
}

Status AddTensors(const Adapter& adapter, GgufWriter& file, Checksum& checksum) {
  const auto add = [&](size_t layer, std::string_view part, const std::vector<float>& values,
                       std::vector<uint64_t> shape) {
    const std::string name = TensorName(layer, part);
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

// --- Reading -----------------------------------------------------------------------------------------------

constexpr std::string_view kWhatToDo = "make it again, or run without it";

Status Damaged(const std::string& path, std::string_view why) {
  return {StatusCode::kCorrupt, fmt::format("{}: the adapter is damaged ({}): {}", path, why, kWhatToDo)};
}

Status ReadReuse(const GgufFile& file, std::vector<ReuseRate>* rows) {
  if (!file.Has(kReusePolicyKey)) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::string_view> policies, file.Strings(kReusePolicyKey));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<float> rates, file.Floats(kReuseRateKey));
  if (rates.size() != policies.size())
    return Damaged(file.name(), "its columns of reuse rates differ in length");
  rows->resize(policies.size());
  for (size_t i = 0; i < rows->size(); ++i) {
    (*rows)[i].policy = policies[i];
    (*rows)[i].rate = rates[i];
  }
  const std::pair<std::string_view, uint32_t ReuseRate::*> columns[] = {
      {kReuseGroupKey, &ReuseRate::group_tokens},
      {kReuseSelectKey, &ReuseRate::select_entries},
      {kReuseCtxKey, &ReuseRate::n_ctx},
      {kReuseCapacityKey, &ReuseRate::reuse_groups}};
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

Status ReadMeasured(const GgufFile& file, Header* header) {
  KVRUN_RETURN_IF_ERROR(ReadReuse(file, &header->reuse));
  if (file.Has(kThresholdsKey)) {
    KVRUN_ASSIGN_OR_RETURN(header->cluster_thresholds, file.Floats(kThresholdsKey));
  }
  if (header->version >= 3 && file.Has(kMeansKey)) {
    KVRUN_ASSIGN_OR_RETURN(header->entry_means, file.Floats(kMeansKey));
  }
  if (header->version >= 3 && file.Has(kSharesKey)) {
    KVRUN_ASSIGN_OR_RETURN(header->layer_shares, file.Floats(kSharesKey));
  }
  if (header->version >= 4 && file.Has(kMadeFromKey)) {
    KVRUN_ASSIGN_OR_RETURN(header->made_from, file.String(kMadeFromKey));
  }
  if (header->version >= 4 && file.Has(kMeasuredOnKey)) {
    KVRUN_ASSIGN_OR_RETURN(header->measured_on, file.String(kMeasuredOnKey));
  }
  return Status::Ok();
}

Result<Header> ReadHeader(const GgufFile& file) {
  const std::string& path = file.name();
  const auto architecture = file.String("general.architecture");
  if (!architecture.ok() || *architecture != kArchitecture) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is not an adapter of kvrun but {}", path,
                              architecture.ok() ? fmt::format("a file of '{:.40}'", *architecture)
                                                : "another kind of GGUF file"));
  }
  KVRUN_ASSIGN_OR_RETURN(const uint32_t version, file.U32(kVersionKey));
  if (version < kOldestVersion || version > kVersion) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: the adapter is of version {}, and this kvrun reads versions {} to {}: "
                              "make it again with kvadapt calibrate",
                              path, version, kOldestVersion, kVersion));
  }
  Header header;
  header.version = version;
  KVRUN_ASSIGN_OR_RETURN(const std::string_view kind, file.String(kKindKey));
  const auto known_kind = FindAdapterKind(kind);
  if (!known_kind.ok()) return Damaged(path, known_kind.status().message());
  header.kind = *known_kind;
  KVRUN_ASSIGN_OR_RETURN(header.fingerprint, file.String(kFingerprintKey));
  KVRUN_ASSIGN_OR_RETURN(header.rank, file.U32(kRankKey));
  KVRUN_ASSIGN_OR_RETURN(header.n_layers, file.U32(kLayersKey));
  KVRUN_ASSIGN_OR_RETURN(header.key_dim, file.U32(kKeyDimKey));
  KVRUN_ASSIGN_OR_RETURN(header.energies, file.Floats(kEnergiesKey));
  if (!header.energies.empty() && header.energies.size() != uint64_t{header.n_layers} * header.rank) {
    return Damaged(path, fmt::format("it has {} energies, not one for each column of each layer",
                                     header.energies.size()));
  }
  if (header.rank == 0 || header.rank > header.key_dim || header.n_layers == 0) {
    return Damaged(path, fmt::format("it has rank {} of {} and {} layers", header.rank, header.key_dim,
                                     header.n_layers));
  }
  if (version >= 2) KVRUN_RETURN_IF_ERROR(ReadMeasured(file, &header));
  if (const std::string wrong = WrongIn(header); !wrong.empty()) return Damaged(path, wrong);
  return header;
}

AdapterFit FitOf(const Header& header) {
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
  Checksum checksum;
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

Result<LayerAdapter> ReadLayer(const GgufFile& file, const Header& header, uint32_t index, uint32_t rank,
                               Findings& findings) {
  LayerAdapter layer;
  layer.key_dim = header.key_dim;
  layer.rank = rank;
  const auto side = [&](std::string_view part) {
    return ReadTensor(file, TensorName(index, part), rank, header.rank, header.key_dim, findings);
  };
  KVRUN_ASSIGN_OR_RETURN(layer.key_side, side("key_side"));
  layer.query_side = layer.key_side;
  if (SidesDiffer(header.kind)) {
    KVRUN_ASSIGN_OR_RETURN(layer.query_side, side("query_side"));
  }
  layer.mean.resize(header.key_dim);
  if (TakesMeanOff(header.kind)) {
    KVRUN_ASSIGN_OR_RETURN(
        layer.mean, ReadTensor(file, TensorName(index, "mean"), header.key_dim, header.key_dim, 1, findings));
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
Result<Header> ReadHeaderOf(const GgufFile& file) {
  auto header = ReadHeader(file);
  if (header.status().code() == StatusCode::kNotFound) return Damaged(file.name(), header.status().message());
  return header;
}

// `rank` columns of each layer.
Result<Adapter> ReadLayers(const GgufFile& file, const Header& header, uint32_t rank) {
  Findings findings;
  AddHeader(header, findings.checksum);
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
  const auto expected = file.String(kChecksumKey);
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

Status WriteAdapter(const Adapter& adapter, const std::string& path) {
  const std::string doing = fmt::format("cannot write the adapter {}", path);
  const auto header = HeaderOf(adapter);
  if (!header.ok()) return header.status().WithContext(doing);
  GgufWriter file;
  file.Set("general.architecture", kArchitecture);
  file.Set(kVersionKey, kVersion);
  file.Set(kKindKey, AdapterKindName(header->kind));
  file.Set(kFingerprintKey, header->fingerprint);
  file.Set(kRankKey, header->rank);
  file.Set(kLayersKey, header->n_layers);
  file.Set(kKeyDimKey, header->key_dim);
  file.Set(kEnergiesKey, header->energies);
  SetMeasured(*header, file);
  Checksum checksum;
  AddHeader(*header, checksum);
  if (const Status status = AddTensors(adapter, file, checksum); !status.ok())
    return status.WithContext(doing);
  file.Set(kChecksumKey, checksum.text());
  const std::vector<std::byte> bytes = file.Finish();
  const std::span<const std::byte> parts[] = {bytes};
  return ReplaceResultFile(path, parts);
}

Result<Adapter> ReadAdapter(const std::string& path, const std::string& fingerprint, uint32_t n_layers,
                            uint32_t key_dim, uint32_t rank) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenAdapter(path));
  KVRUN_ASSIGN_OR_RETURN(const Header header, ReadHeaderOf(*file));
  KVRUN_RETURN_IF_ERROR(CheckFits(path, FitOf(header), {fingerprint, n_layers, key_dim, rank}));
  return ReadLayers(*file, header, rank);
}

Result<Adapter> ReadWholeAdapter(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenAdapter(path));
  KVRUN_ASSIGN_OR_RETURN(const Header header, ReadHeaderOf(*file));
  return ReadLayers(*file, header, header.rank);
}

Result<AdapterFile::Content> AdapterFile::Read(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenAdapter(path));
  KVRUN_ASSIGN_OR_RETURN(const Header header, ReadHeaderOf(*file));
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
