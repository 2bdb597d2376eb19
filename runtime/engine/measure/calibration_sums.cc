#include "runtime/engine/measure/calibration_sums.h"

#include <fmt/format.h>
#include <system_error>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <variant>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "platform/io/replace_file.h"
#include "runtime/model/gguf.h"
#include "runtime/model/gguf_writer.h"

namespace kvrun {
namespace {

constexpr uint32_t kVersion = 1;
constexpr std::string_view kArchitectureKey = "general.architecture";
constexpr std::string_view kVersionKey = "kvrun-sums.version";
constexpr std::string_view kFingerprintKey = "kvrun-sums.fingerprint";
constexpr std::string_view kTextsKey = "kvrun-sums.texts";
constexpr std::string_view kContextKey = "kvrun-sums.n_ctx";
constexpr std::string_view kSinksKey = "kvrun-sums.n_sinks";
constexpr std::string_view kPiecesKey = "kvrun-sums.n_pieces";
constexpr std::string_view kTokensKey = "kvrun-sums.n_tokens";
constexpr std::string_view kKeysKey = "kvrun-sums.n_keys";
constexpr std::string_view kQueriesKey = "kvrun-sums.n_queries";
constexpr std::string_view kLayersKey = "kvrun-sums.layers";
constexpr std::string_view kHeadsKey = "kvrun-sums.n_kv_heads";
constexpr std::string_view kHeadDimKey = "kvrun-sums.head_dim";
constexpr std::string_view kChecksumKey = "kvrun-sums.checksum";

void AddTo(std::vector<double>* totals, const auto& values) {
  totals->resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) (*totals)[i] += values[i];
}

template <typename Sums>
void AddSums(LayerTotals* to, const Sums& sums) {
  to->n_kv_heads = sums.n_kv_heads;
  to->head_dim = sums.head_dim;
  to->n_keys += sums.n_keys;
  to->n_queries += sums.n_queries;
  AddTo(&to->keys, sums.keys);
  AddTo(&to->queries, sums.queries);
}

// A layer's tensors, in the file's order.
struct Part {
  std::string name;
  std::vector<uint64_t> shape;
  std::span<const double> values;
};

std::vector<Part> Parts(size_t index, const LayerTotals& layer) {
  const uint64_t key_dim = uint64_t{layer.n_kv_heads} * layer.head_dim;
  const std::span<const double> keys(layer.keys);
  return {{fmt::format("blk.{}.keys", index), {key_dim, key_dim}, keys.first(key_dim * key_dim)},
          {fmt::format("blk.{}.key_sum", index), {key_dim}, keys.subspan(key_dim * key_dim)},
          {fmt::format("blk.{}.queries", index),
           {layer.head_dim, layer.head_dim, layer.n_kv_heads},
           layer.queries}};
}

// Of all that a reader relies on.
class Checksum {
 public:
  void Add(std::span<const std::byte> bytes) {
    value_ = XXH3_64bits_withSeed(bytes.data(), bytes.size(), value_);
  }
  void AddHeader(const CalibrationSums& sums, const LayerTotals& shape) {
    const std::string text =
        fmt::format("{} {} {} {} {} {} {} {} {} {} {}", sums.fingerprint, sums.texts, sums.n_ctx,
                    sums.n_sinks, sums.n_pieces, sums.n_tokens, shape.n_keys, shape.n_queries,
                    sums.layers.size(), shape.n_kv_heads, shape.head_dim);
    Add(std::as_bytes(std::span(text)));
  }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0;
};

Status Damaged(const std::string& path, std::string_view why) {
  return {StatusCode::kCorrupt, fmt::format("{}: the sums are damaged ({})", path, why)};
}

Result<uint64_t> Count(const GgufFile& file, std::string_view key) {
  const GgufValue* value = file.Find(key);
  const auto* count = value == nullptr ? nullptr : std::get_if<uint64_t>(value);
  if (count == nullptr) return Damaged(file.name(), fmt::format("{} is missing", key));
  return *count;
}

// Reads the header of `file` into `sums`, and the shape of its layers, of which there are `n_layers`.
Result<LayerTotals> ReadHeader(const GgufFile& file, CalibrationSums* sums, uint32_t* n_layers) {
  const auto architecture = file.String(kArchitectureKey);
  if (!architecture.ok() || *architecture != kSumsArchitecture) {
    return Status(StatusCode::kInvalidArgument, file.name() + " does not hold sums of a calibration");
  }
  KVRUN_ASSIGN_OR_RETURN(const uint32_t version, file.U32(kVersionKey));
  if (version != kVersion) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: sums of version {} cannot be read, only of version {}", file.name(),
                              version, kVersion));
  }
  LayerTotals shape;
  KVRUN_ASSIGN_OR_RETURN(sums->fingerprint, file.String(kFingerprintKey));
  KVRUN_ASSIGN_OR_RETURN(sums->texts, file.String(kTextsKey));
  KVRUN_ASSIGN_OR_RETURN(sums->n_ctx, file.U32(kContextKey));
  KVRUN_ASSIGN_OR_RETURN(sums->n_sinks, file.U32(kSinksKey));
  KVRUN_ASSIGN_OR_RETURN(sums->n_pieces, Count(file, kPiecesKey));
  KVRUN_ASSIGN_OR_RETURN(sums->n_tokens, Count(file, kTokensKey));
  KVRUN_ASSIGN_OR_RETURN(shape.n_keys, Count(file, kKeysKey));
  KVRUN_ASSIGN_OR_RETURN(shape.n_queries, Count(file, kQueriesKey));
  KVRUN_ASSIGN_OR_RETURN(*n_layers, file.U32(kLayersKey));
  KVRUN_ASSIGN_OR_RETURN(shape.n_kv_heads, file.U32(kHeadsKey));
  KVRUN_ASSIGN_OR_RETURN(shape.head_dim, file.U32(kHeadDimKey));
  return shape;
}

// Appends to `values` what the tensor holds, `elements` of them.
Status ReadTensor(const GgufFile& file, const std::string& name, uint64_t elements, Checksum* checksum,
                  std::vector<double>* values) {
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) return Damaged(file.name(), fmt::format("{} is missing", name));
  if (tensor->type != TensorType::kF64 || tensor->elements() != elements) {
    return Damaged(file.name(), fmt::format("{} has another type or shape", name));
  }
  const size_t begin = values->size();
  values->resize(begin + elements);
  const auto bytes = std::as_writable_bytes(std::span(*values).subspan(begin));
  KVRUN_RETURN_IF_ERROR(file.Read(*tensor, 0, bytes));
  checksum->Add(bytes);
  return Status::Ok();
}

Result<CalibrationSums> ReadFile(const GgufFile& file) {
  CalibrationSums sums;
  uint32_t n_layers = 0;
  KVRUN_ASSIGN_OR_RETURN(const LayerTotals shape, ReadHeader(file, &sums, &n_layers));
  if (n_layers == 0 || n_layers > file.tensors().size())
    return Damaged(file.name(), "its number of layers is wrong");
  sums.layers.assign(n_layers, shape);
  Checksum checksum;
  checksum.AddHeader(sums, shape);
  const uint64_t key_dim = uint64_t{shape.n_kv_heads} * shape.head_dim;
  for (uint32_t i = 0; i < n_layers; ++i) {
    LayerTotals& layer = sums.layers[i];
    KVRUN_RETURN_IF_ERROR(
        ReadTensor(file, fmt::format("blk.{}.keys", i), key_dim * key_dim, &checksum, &layer.keys));
    KVRUN_RETURN_IF_ERROR(
        ReadTensor(file, fmt::format("blk.{}.key_sum", i), key_dim, &checksum, &layer.keys));
    KVRUN_RETURN_IF_ERROR(ReadTensor(file, fmt::format("blk.{}.queries", i), key_dim * shape.head_dim,
                                     &checksum, &layer.queries));
  }
  const auto expected = file.String(kChecksumKey);
  if (!expected.ok() || *expected != checksum.text()) return Damaged(file.name(), "its checksum is wrong");
  return sums;
}

constexpr size_t kStartBytes = 4096;  // the names of all keys are in them

}  // namespace

void LayerTotals::Add(const LayerSums& sums) { AddSums(this, sums); }
void LayerTotals::Add(const LayerTotals& totals) { AddSums(this, totals); }

PreciseLayerSums LayerTotals::View() const {
  return {.n_kv_heads = n_kv_heads,
          .head_dim = head_dim,
          .n_keys = n_keys,
          .keys = keys,
          .n_queries = n_queries,
          .queries = queries};
}

std::string TextsHash(std::span<const std::span<const TokenId>> pieces) {
  XXH128_hash_t hash = {0, 0};
  for (const std::span<const TokenId> piece : pieces) {
    const XXH128_hash_t ids = XXH3_128bits(piece.data(), piece.size_bytes());
    const uint64_t chained[] = {hash.high64, hash.low64, piece.size(), ids.high64, ids.low64};
    hash = XXH3_128bits(chained, sizeof chained);
  }
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

Status WriteSums(const CalibrationSums& sums, const std::string& path) {
  KVRUN_CHECK(!sums.layers.empty());
  const LayerTotals& shape = sums.layers.front();
  GgufWriter file;
  file.Set(kArchitectureKey, kSumsArchitecture);
  file.Set(kVersionKey, kVersion);
  file.Set(kFingerprintKey, sums.fingerprint);
  file.Set(kTextsKey, sums.texts);
  file.Set(kContextKey, sums.n_ctx);
  file.Set(kSinksKey, sums.n_sinks);
  file.Set(kPiecesKey, sums.n_pieces);
  file.Set(kTokensKey, sums.n_tokens);
  file.Set(kKeysKey, shape.n_keys);
  file.Set(kQueriesKey, shape.n_queries);
  file.Set(kLayersKey, static_cast<uint32_t>(sums.layers.size()));
  file.Set(kHeadsKey, shape.n_kv_heads);
  file.Set(kHeadDimKey, shape.head_dim);
  Checksum checksum;
  checksum.AddHeader(sums, shape);
  // What lies between tensors, so that each begins where the header says.
  static constexpr std::byte kPadding[32] = {};
  std::vector<std::span<const std::byte>> data(1);  // the header, once it is complete
  uint64_t end = 0;
  for (size_t i = 0; i < sums.layers.size(); ++i) {
    for (const Part& part : Parts(i, sums.layers[i])) {
      const uint64_t begin = file.Declare(part.name, TensorType::kF64, part.shape);
      data.push_back(std::span(kPadding).first(begin - end));
      data.push_back(std::as_bytes(part.values));
      checksum.Add(data.back());
      end = begin + data.back().size();
    }
  }
  KVRUN_CHECK(end == file.data_bytes());
  file.Set(kChecksumKey, checksum.text());
  const std::vector<std::byte> header = file.Header();
  data.front() = header;
  return ReplaceResultFile(path, data);
}

Result<CalibrationSums> ReadSums(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  return ReadFile(*file);
}

Result<bool> BeginsAsSums(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return true;
  std::ifstream file(path, std::ios::binary);
  if (!file) return StatusFromErrno(errno, "cannot read " + path);
  std::string start(kStartBytes, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(file.gcount()));
  return start.empty() || (start.starts_with("GGUF") && start.find(kSumsArchitecture) != std::string::npos);
}

}  // namespace kvrun
