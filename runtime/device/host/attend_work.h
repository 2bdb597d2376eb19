// How attention is divided among workers: into units, whose bounds follow from the model and from how many
// entries a row sees, so that a row's result does not depend on how many workers there are, nor on the other
// rows.
//
// Items are query rows that share a KV head. A prompt's item is one unit: its rows are many, and there are
// many items. A decoded token's rows are few, and see many entries: its blocks are cut into spans, each a
// unit with a softmax of its own, and these are joined in order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "platform/base/units.h"
#include "runtime/device/device.h"
#include "runtime/device/host/attend_layout.h"
#include "runtime/device/host/attend_rows.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/host/prefetch.h"
#include "runtime/device/host/thread_pool.h"
#include "shaders/shared/step_params.h"

namespace kvrun::host {

// An item: rows first_row .. of the rows that share kv_head in tokens first_token .. of the step. A row is a
// query head of a token: token after token.
struct AttendItem {
  uint32_t first_token = 0;
  uint32_t kv_head = 0;
  uint32_t first_row = 0;
  uint32_t n_rows = 0;
};

// A prompt's items have so many rows, or fewer where else some workers would have nothing to do.
inline constexpr uint32_t kLeastPromptRows = 32;
// A decoded token's units, of all KV heads together, and a unit's blocks at least.
inline constexpr uint32_t kUnitsOfToken = 32;
inline constexpr uint32_t kLeastUnitBlocks = 4;

// Items of attention: for spans of tokens, KV heads in each, tiles of at most most_rows rows in each.
class AttendItems {
 public:
  AttendItems(const AttentionArgs& args, uint32_t n_workers, uint32_t most_rows = kMaxAttendRows)
      : group_(args.n_heads / args.kv_shape.n_kv_heads),
        n_kv_heads_(args.kv_shape.n_kv_heads),
        span_tokens_(args.of_prompt ? args.n_tokens : 1),
        span_rows_(span_tokens_ * group_),
        tile_rows_(most_rows) {
    const uint32_t n_spans = args.n_tokens / span_tokens_;
    const auto count = [&] { return n_spans * n_kv_heads_ * CeilDiv(span_rows_, tile_rows_); };
    while (args.of_prompt && n_workers > 1 && tile_rows_ > kLeastPromptRows && count() < 4 * n_workers)
      tile_rows_ = tile_rows_ == kMaxAttendRows ? 64 : tile_rows_ / 2;
    tiles_ = CeilDiv(span_rows_, tile_rows_);
    count_ = count();
  }

  uint32_t size() const { return count_; }
  uint32_t most_rows() const { return std::min(span_rows_, tile_rows_); }
  AttendItem operator[](uint32_t i) const {
    const uint32_t first_row = i % tiles_ * tile_rows_;
    return {.first_token = i / tiles_ / n_kv_heads_ * span_tokens_,
            .kv_head = i / tiles_ % n_kv_heads_,
            .first_row = first_row,
            .n_rows = std::min(tile_rows_, span_rows_ - first_row)};
  }
  uint32_t TokenOf(const AttendItem& item, uint32_t row) const {
    return item.first_token + (item.first_row + row) / group_;
  }
  // Of [n_tokens, n_heads].
  uint32_t OutputRow(const AttendItem& item, uint32_t row) const {
    const uint32_t head = item.kv_head * group_ + (item.first_row + row) % group_;
    return TokenOf(item, row) * group_ * n_kv_heads_ + head;
  }

 private:
  uint32_t group_;
  uint32_t n_kv_heads_;
  uint32_t span_tokens_;
  uint32_t span_rows_;
  uint32_t tile_rows_;
  uint32_t tiles_;
  uint32_t count_;
};

// The spans of an item, in blocks.
class AttendSpans {
 public:
  AttendSpans(const AttentionArgs& args, uint32_t n_blocks)
      : n_blocks_(n_blocks),
        span_blocks_(args.of_prompt ? n_blocks
                                    : std::max(kLeastUnitBlocks, CeilDiv(n_blocks, MostSpans(args)))) {}

  static uint32_t MostSpans(const AttentionArgs& args) {
    return args.of_prompt ? 1 : CeilDiv(kUnitsOfToken, args.kv_shape.n_kv_heads);
  }
  uint32_t size() const { return CeilDiv(n_blocks_, span_blocks_); }
  uint32_t begin(uint32_t span) const { return std::min(span * span_blocks_, n_blocks_); }

 private:
  uint32_t n_blocks_;
  uint32_t span_blocks_;
};

// Joins parts of a softmax, [n_parts, n_rows, part], in order, in the place of the first.
inline void JoinParts(float* parts, uint32_t n_parts, uint32_t n_rows, uint32_t head_dim, bool is_base_2) {
  const size_t part_floats = AttendPartFloats(head_dim);
  const auto power = [is_base_2](float x) { return is_base_2 ? std::exp2(x) : std::exp(x); };
  for (uint32_t r = 0; r < n_rows; ++r) {
    float* const to = parts + r * part_floats;
    float maximum = to[head_dim];
    for (uint32_t i = 1; i < n_parts; ++i)
      maximum = std::max(maximum, to[i * n_rows * part_floats + head_dim]);
    const float first_factor = power(to[head_dim] - maximum);
    for (uint32_t i = 0; i < head_dim + 2; ++i) to[i] *= first_factor;
    for (uint32_t part = 1; part < n_parts; ++part) {
      const float* const from = to + part * n_rows * part_floats;
      const float factor = power(from[head_dim] - maximum);
      for (uint32_t i = 0; i < head_dim + 2; ++i) to[i] += factor * from[i];
    }
    to[head_dim] = maximum;
  }
}

inline float* PartRow(const AttentionParts& parts, uint32_t head_dim, size_t row) {
  return Data<float>(parts.buffer) + (parts.first_row + row) * AttendPartFloats(head_dim);
}

inline void FinishPart(const float* part, uint32_t head_dim, float* to) {
  const float factor = 1.0F / part[head_dim + 1];
  for (uint32_t i = 0; i < head_dim; ++i) to[i] = part[i] * factor;
}

// What parts of cut items are kept in: [items, spans, rows of an item, part].
inline uint64_t CutPartsBytes(const AttentionArgs& args, uint32_t most_rows = kMaxAttendRows) {
  if (args.of_prompt) return 16;
  const AttendItems items(args, 1, most_rows);
  return uint64_t{items.size()} * AttendSpans::MostSpans(args) * items.most_rows() *
         AttendPartFloats(args.kv_shape.head_dim) * sizeof(float);
}

// What entries weigh, kept for later: of each block of each item, the weights of few rows as they were beside
// the largest score until then; and of each row what these are to be multiplied with in the end.
class KeptWeights {
 public:
  static uint64_t Bytes(const AttendItems& items, uint32_t most_blocks) {
    return (uint64_t{items.size()} * most_blocks * BlockFloats() + uint64_t{items.size()} * 2 * kFewRows) *
           sizeof(float);
  }

  KeptWeights(float* memory, const AttendItems& items, uint32_t most_blocks)
      : sums_(memory), blocks_(memory + size_t{items.size()} * 2 * kFewRows), most_blocks_(most_blocks) {}

  void Keep(uint32_t item, uint32_t nth, KvBlock* block) const {
    block->kept_weights = Block(item, nth);
    block->kept_maxima = block->kept_weights + kFewRows * kBlockEntries;
  }
  // A row's largest score and sum of weights, of all its blocks.
  void NoteSum(uint32_t item, uint32_t row, float maximum, float weight) const {
    float* const sum = sums_ + (size_t{item} * kFewRows + row) * 2;
    sum[0] = maximum;
    sum[1] = weight;
  }
  // Of an item's rows, [n_rows, kBlockEntries].
  const float* Rows(uint32_t item, uint32_t nth) const { return Block(item, nth); }
  // What makes softmax weights of a row's.
  float Factor(uint32_t item, uint32_t nth, uint32_t row) const {
    const float* const sum = sums_ + (size_t{item} * kFewRows + row) * 2;
    return std::exp(Maximum(item, nth, row) - sum[0]) / sum[1];
  }
  // The row's largest score until then.
  float Maximum(uint32_t item, uint32_t nth, uint32_t row) const {
    return Block(item, nth)[kFewRows * kBlockEntries + row];
  }

 private:
  static constexpr size_t BlockFloats() { return size_t{kFewRows} * (kBlockEntries + 1); }
  float* Block(uint32_t item, uint32_t nth) const {
    return blocks_ + (size_t{item} * most_blocks_ + nth) * BlockFloats();
  }

  float* sums_;    // [items, kFewRows, 2]
  float* blocks_;  // [items, most_blocks], each [kFewRows, kBlockEntries] and [kFewRows]
  uint32_t most_blocks_;
};

// The source is what items attend to:
//   uint32_t CountBlocks(const AttendItem&) const: at least 1;
//   void LoadBlock(const AttendItem&, uint32_t nth, KvBlock*) const.
template <typename Source>
class AttendWork {
 public:
  // rounds: as in AttendRows. kept: null, or what is kept of few rows.
  AttendWork(ThreadPool& pool, const AttentionArgs& args, const AttendItems& items, const Source& source,
             bool rounds, const KeptWeights* kept = nullptr)
      : pool_(pool),
        args_(args),
        rounds_(rounds),
        kept_(kept),
        source_(source),
        items_(items),
        head_dim_(args.kv_shape.head_dim),
        part_floats_(AttendPartFloats(head_dim_)) {
    for (uint32_t i = 0; i < items_.size(); ++i) {
      most_spans_ = std::max(most_spans_, AttendSpans(args_, source_.CountBlocks(items_[i])).size());
    }
  }

  void Run() {
    pool_.ReserveScratch(AttendRowsBytes(head_dim_) + ItemPartsBytes());
    const size_t n_units = size_t{items_.size()} * most_spans_;
    // A prompt's last items see the most entries: first these, one by one, so that none of them is left when
    // all else is done.
    if (args_.of_prompt) {
      pool_.ParallelFor(
          n_units, 1,
          [&](size_t begin, size_t end, uint32_t worker) {
            for (size_t i = begin; i < end; ++i) RunUnit(n_units - 1 - i, worker);
          },
          Pieces::kOneByOne);
    } else {
      pool_.ParallelFor(n_units, 1, [&](size_t begin, size_t end, uint32_t worker) {
        for (size_t i = begin; i < end; ++i) RunUnit(i, worker);
      });
    }
    if (most_spans_ > 1) JoinCutItems();
  }

 private:
  // A unit's parts.
  size_t ItemPartsBytes() const { return size_t{items_.most_rows()} * part_floats_ * sizeof(float); }
  float* CutParts(uint32_t item) const {
    return Data<float>(args_.scratch) +
           size_t{item} * AttendSpans::MostSpans(args_) * items_.most_rows() * part_floats_;
  }
  // A span of an item, if the item has so many. First the first one of all items: what the KV heads attend to
  // may lie in the same records, on the same pages and with scales in the same lines.
  void RunUnit(size_t unit, uint32_t worker) const {
    const auto i = static_cast<uint32_t>(unit % items_.size());
    const auto span = static_cast<uint32_t>(unit / items_.size());
    const AttendItem item = items_[i];
    const AttendSpans spans(args_, source_.CountBlocks(item));
    if (span >= spans.size()) return;
    std::byte* memory = pool_.Scratch(worker, AttendRowsBytes(head_dim_) + ItemPartsBytes());
    auto* parts = reinterpret_cast<float*>(memory + AttendRowsBytes(head_dim_));
    float* to = spans.size() == 1 ? parts : CutParts(i) + size_t{span} * item.n_rows * part_floats_;
    Attend(i, spans.begin(span), spans.begin(span + 1), memory, to);
    if (spans.size() == 1 && !goes_on()) Finish(i, to);
  }

  void Attend(uint32_t i, uint32_t first_block, uint32_t end_block, std::byte* memory, float* parts) const {
    const AttendItem item = items_[i];
    const AttendRows rows{.n_rows = item.n_rows,
                          .head_dim = head_dim_,
                          .rounds = rounds_,
                          .is_prompt = args_.of_prompt,
                          .score_cap = args_.score_cap,
                          .score_scale = args_.score_scale,
                          .memory = memory};
    const size_t stride = size_t{args_.n_heads + 2 * args_.kv_shape.n_kv_heads} * head_dim_;
    const float* queries[kMaxAttendRows] = {};
    for (uint32_t r = 0; r < item.n_rows; ++r) {
      queries[r] = Data<float>(args_.qkv) + items_.TokenOf(item, r) * stride +
                   size_t{items_.OutputRow(item, r) % args_.n_heads} * head_dim_;
    }
    const float* before[kMaxAttendRows] = {};
    const bool has_before = first_block == 0 && args_.parts_before.buffer != nullptr;
    for (uint32_t r = 0; has_before && r < item.n_rows; ++r)
      before[r] = PartRow(args_.parts_before, head_dim_, items_.OutputRow(item, r));
    BeginAttend(rows, queries, has_before ? before : nullptr);
    KvBlock blocks[2];
    const auto load = [&](uint32_t nth, KvBlock* block) {
      source_.LoadBlock(item, nth, block);
      if (kept_ != nullptr) kept_->Keep(i, nth, block);
    };
    load(first_block, &blocks[0]);
    if (!args_.of_prompt) PrefetchBlock(blocks[0]);
    for (uint32_t nth = first_block; nth < end_block; ++nth) {
      const KvBlock& block = blocks[(nth - first_block) % 2];
      KvBlock* next = nth + 1 < end_block ? &blocks[(nth + 1 - first_block) % 2] : nullptr;
      if (next != nullptr) load(nth + 1, next);
      if (block.n_entries > 0) AttendBlock(rows, block, next);
    }
    float* to[kMaxAttendRows] = {};
    for (uint32_t r = 0; r < item.n_rows; ++r) to[r] = parts + size_t{r} * part_floats_;
    for (uint32_t r = 0; goes_on() && r < item.n_rows; ++r)
      to[r] = PartRow(args_.parts_after, head_dim_, items_.OutputRow(item, r));
    EndAttend(rows, to);
  }

  // The first of a unit, which none before it reads ahead of.
  void PrefetchBlock(const KvBlock& block) const {
    const Ahead keys{block.n_entries, RowBytes(block.k_type, head_dim_), block.k,
                     RowScales(block.k_type, head_dim_) != 0 ? block.k_scales : nullptr};
    for (uint32_t entry = 0; entry < block.n_entries; ++entry) keys.Prefetch(entry);
  }

  // A prompt's units, each of which is all of an item, leave their parts where more is to be added to them.
  bool goes_on() const { return args_.goes_on() && args_.of_prompt && kept_ == nullptr; }

  // parts: of the item's rows, complete.
  void Finish(uint32_t i, const float* parts) const {
    const AttendItem item = items_[i];
    for (uint32_t r = 0; r < item.n_rows; ++r) {
      const size_t row = items_.OutputRow(item, r);
      const float* part = parts + size_t{r} * part_floats_;
      if (kept_ != nullptr) kept_->NoteSum(i, r, part[head_dim_], part[head_dim_ + 1]);
      if (!args_.goes_on())
        FinishPart(part, head_dim_, Data<float>(args_.output) + row * head_dim_);
      else
        std::memcpy(PartRow(args_.parts_after, head_dim_, row), part, part_floats_ * sizeof(float));
    }
  }

  void JoinCutItems() const {
    // Items that are worth a second thread: they take about as long as waking it.
    const size_t grain =
        std::max<size_t>(1, 20000 / (AttendSpans::MostSpans(args_) * items_.most_rows() * part_floats_));
    pool_.ParallelFor(items_.size(), grain, [&](size_t begin, size_t end, uint32_t) {
      for (auto i = static_cast<uint32_t>(begin); i < end; ++i) {
        const AttendItem item = items_[i];
        const uint32_t n_spans = AttendSpans(args_, source_.CountBlocks(item)).size();
        if (n_spans == 1) continue;
        JoinParts(CutParts(i), n_spans, item.n_rows, head_dim_, /*is_base_2=*/item.n_rows > kFewRows);
        Finish(i, CutParts(i));
      }
    });
  }

  ThreadPool& pool_;
  const AttentionArgs& args_;
  bool rounds_;
  const KeptWeights* kept_;
  const Source& source_;
  const AttendItems& items_;
  uint32_t head_dim_;
  uint32_t part_floats_;
  uint32_t most_spans_ = 1;  // of an item
};

}  // namespace kvrun::host
