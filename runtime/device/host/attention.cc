// Attention over KV in memory.
#include <algorithm>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/host/attend_work.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/rope.h"

namespace kvrun::host {
namespace {

// Positions 0 .. of the sequence of an item's tokens, or a window of them.
class ResidentKv {
 public:
  ResidentKv(const AttentionArgs& args, const AttendItems& items)
      : shape_(args.kv_shape),
        step_(*Data<StepParams>(args.step)),
        items_(items),
        kv_(Data<std::byte>(args.kv)),
        row_bytes_(size_t{shape_.head_dim} * KvElementBytes(shape_.type)),
        window_(args.window_tokens),
        of_prompt_(args.of_prompt) {}

  uint32_t CountBlocks(const AttendItem& item) const {
    if (window_ > 0) return CeilDiv(End(item, item.n_rows - 1) - FirstOf(item), kBlockEntries);
    uint32_t last = 0;
    const uint32_t end = items_.TokenOf(item, item.n_rows - 1);
    for (uint32_t token = items_.TokenOf(item, 0); token <= end; ++token)
      last = std::max(last, step_.tokens[token].position);
    return std::min(last, shape_.n_ctx - 1) / kBlockEntries + 1;
  }

  void LoadBlock(const AttendItem& item, uint32_t nth, KvBlock* block) const {
    if (window_ > 0) return LoadWindowBlock(item, nth, block);
    const uint32_t first = nth * kBlockEntries;
    uint32_t n = 0;
    for (uint32_t r = 0; r < item.n_rows; ++r) {
      const uint32_t position = step_.tokens[items_.TokenOf(item, r)].position;
      const uint32_t end = std::min(position, shape_.n_ctx - 1) + 1;
      block->visible[r] = end > first ? std::min(end - first, kBlockEntries) : 0;
      n = std::max(n, block->visible[r]);
    }
    const std::byte* k = Plane(item) + first * row_bytes_;
    const std::byte* v = k + shape_.n_ctx * row_bytes_;
    block->k_type = block->v_type = shape_.type;
    block->n_entries = n;
    for (uint32_t i = 0; i < n; ++i) {
      block->k[i] = k + i * row_bytes_;
      block->v[i] = v + i * row_bytes_;
    }
  }

 private:
  // K of position 0.
  const std::byte* Plane(const AttendItem& item) const {
    const size_t sequence = step_.tokens[item.first_token].sequence;
    return kv_ + (sequence * shape_.n_kv_heads + item.kv_head) * 2 * shape_.n_ctx * row_bytes_;
  }
  // The positions that a row sees in a window.
  uint32_t End(const AttendItem& item, uint32_t row) const {
    return step_.tokens[items_.TokenOf(item, row)].position + 1;
  }
  uint32_t Begin(const AttendItem& item, uint32_t row) const {
    const uint32_t end = End(item, row);
    return end > window_ ? end - window_ : 0;
  }
  // The position that an item's blocks begin with: what its rows, all of one token, see begins there too. Of
  // a prompt's it is that of the same blocks however the prompt is cut.
  uint32_t FirstOf(const AttendItem& item) const {
    const uint32_t begin = Begin(item, 0);
    return of_prompt_ ? begin / kBlockEntries * kBlockEntries : begin;
  }

  void LoadWindowBlock(const AttendItem& item, uint32_t nth, KvBlock* block) const {
    const uint32_t first = FirstOf(item) + nth * kBlockEntries;
    const auto place_of = [first](uint32_t position) {
      return position > first ? std::min(position - first, kBlockEntries) : 0;
    };
    block->n_entries = place_of(End(item, item.n_rows - 1));
    block->has_hidden = of_prompt_ && Begin(item, item.n_rows - 1) > first;
    for (uint32_t r = 0; r < item.n_rows; ++r) {
      block->visible[r] = place_of(End(item, r));
      if (block->has_hidden) block->hidden[r] = place_of(Begin(item, r));
    }
    const std::byte* const k = Plane(item);
    block->k_type = block->v_type = shape_.type;
    uint32_t place = first % shape_.n_ctx;
    for (uint32_t i = 0; i < block->n_entries; ++i) {
      block->k[i] = k + place * row_bytes_;
      block->v[i] = block->k[i] + shape_.n_ctx * row_bytes_;
      if (++place == shape_.n_ctx) place = 0;
    }
  }

  const KvShape& shape_;
  const StepParams& step_;
  const AttendItems& items_;
  const std::byte* kv_;
  size_t row_bytes_;
  uint32_t window_;  // 0: all positions
  bool of_prompt_;
};

void CheckArgs(const AttentionArgs& args) {
  const KvShape& kv = args.kv_shape;
  KVRUN_CHECK(kv.type == KvType::kF16 || kv.type == KvType::kF32);
  KVRUN_CHECK(kv.head_dim % 2 == 0 && kv.head_dim <= kMaxHeadDim && args.n_heads % kv.n_kv_heads == 0);
  KVRUN_CHECK(args.window_tokens == 0 || (args.window_tokens <= kv.n_ctx && !args.goes_on()));
}

}  // namespace

void RopeAndStore(ThreadPool& pool, const AttentionArgs& args) {
  CheckArgs(args);
  const KvShape& kv = args.kv_shape;
  const StepParams& step = *Data<StepParams>(args.step);
  std::byte* to = Data<std::byte>(args.kv);
  const size_t row_bytes = size_t{kv.head_dim} * KvElementBytes(kv.type);
  RopeHeads(pool, args, [&](uint32_t token, uint32_t kv_head, bool is_value, const float* row) {
    const size_t plane =
        (size_t{step.tokens[token].sequence} * kv.n_kv_heads + kv_head) * 2 + (is_value ? 1 : 0);
    const uint32_t position = step.tokens[token].position;
    const uint32_t place = args.window_tokens > 0 ? position % kv.n_ctx : position;
    std::byte* entry = to + (plane * kv.n_ctx + place) * row_bytes;
    if (kv.type == KvType::kF16) {
      FloatsToHalves(row, kv.head_dim, reinterpret_cast<uint16_t*>(entry));
    } else {
      std::memcpy(entry, row, row_bytes);
    }
  });
}

uint64_t AttendScratchBytes(const AttentionArgs& args) { return CutPartsBytes(args); }

void Attend(ThreadPool& pool, const AttentionArgs& args, bool exact) {
  CheckArgs(args);
  const AttendItems items(args, pool.size());
  const ResidentKv source(args, items);
  AttendWork(pool, args, items, source, !exact).Run();
}

void FinishAttention(ThreadPool& pool, const AttentionArgs& args) {
  const uint32_t head_dim = args.kv_shape.head_dim;
  const float* parts = PartRow(args.parts_after, head_dim, 0);
  auto* output = Data<float>(args.output);
  pool.ParallelFor(size_t{args.n_tokens} * args.n_heads, 16, [&](size_t begin, size_t end, uint32_t) {
    for (size_t row = begin; row < end; ++row)
      FinishPart(parts + row * AttendPartFloats(head_dim), head_dim, output + row * head_dim);
  });
}

}  // namespace kvrun::host
