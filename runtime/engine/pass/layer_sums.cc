#include "runtime/engine/pass/layer_sums.h"

#include <algorithm>
#include <cstring>

namespace kvrun {
namespace {

std::span<const float> Floats(Buffer& buffer) {
  const std::span<std::byte> bytes = buffer.host();
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace

Result<LayerSumBuffers> LayerSumBuffers::Create(Device& device, const ModelConfig& config,
                                                std::string_view part) {
  LayerSumBuffers sums;
  const uint64_t keys = uint64_t{config.kv_dim() + 1} * config.kv_dim();
  const uint64_t queries = uint64_t{config.n_kv_heads} * (config.head_dim + 1) * config.head_dim;
  KVRUN_ASSIGN_OR_RETURN(sums.keys_, device.CreateBuffer(keys * sizeof(float), BufferUse::kShared, part));
  KVRUN_ASSIGN_OR_RETURN(sums.queries_,
                         device.CreateBuffer(queries * sizeof(float), BufferUse::kShared, part));
  return sums;
}

Status LayerSumBuffers::Clear() {
  for (Buffer* sums : {keys_.get(), queries_.get()}) {
    std::memset(sums->host().data(), 0, sums->size_bytes());
    KVRUN_RETURN_IF_ERROR(sums->Flush(0, sums->size_bytes()));
  }
  return Status::Ok();
}

Status LayerSumBuffers::Record(CommandList& list, const StepCommands& commands, const Buffer& qkv,
                               uint32_t n_rows, uint32_t skip_rows) const {
  const ModelConfig& config = commands.config();
  const uint32_t group = config.n_heads / config.n_kv_heads;
  KVRUN_RETURN_IF_ERROR(list.AccumulateGram({.rows = &qkv,
                                             .n_rows = n_rows,
                                             .row_stride = commands.qkv_dim(),
                                             .first_column = config.q_dim(),
                                             .dim = config.kv_dim(),
                                             .skip_rows = skip_rows,
                                             .sums = keys_.get()}));
  for (uint32_t head = 0; head < config.n_kv_heads; ++head) {
    KVRUN_RETURN_IF_ERROR(
        list.AccumulateGram({.rows = &qkv,
                             .n_rows = n_rows,
                             .row_stride = commands.qkv_dim(),
                             .first_column = head * group * config.head_dim,
                             .dim = config.head_dim,
                             .n_blocks = group,
                             .sums = queries_.get(),
                             .sums_offset = head * (config.head_dim + 1) * config.head_dim}));
  }
  return Status::Ok();
}

Result<LayerSums> LayerSumBuffers::Read(const ModelConfig& config, uint64_t n_rows, uint64_t n_skipped) {
  for (Buffer* sums : {keys_.get(), queries_.get()}) {
    KVRUN_RETURN_IF_ERROR(sums->Invalidate(0, sums->size_bytes()));
  }
  // Without the rows of sums: [n_kv_heads, head_dim, head_dim].
  const size_t square = size_t{config.head_dim} * config.head_dim;
  packed_queries_.resize(square * config.n_kv_heads);
  for (uint32_t head = 0; head < config.n_kv_heads; ++head) {
    std::copy_n(Floats(*queries_).begin() + head * (square + config.head_dim), square,
                packed_queries_.begin() + head * square);
  }
  return LayerSums{.n_kv_heads = config.n_kv_heads,
                   .head_dim = config.head_dim,
                   .n_keys = n_rows - n_skipped,
                   .keys = Floats(*keys_),
                   .n_queries = n_rows * (config.n_heads / config.n_kv_heads),
                   .queries = packed_queries_};
}

}  // namespace kvrun
