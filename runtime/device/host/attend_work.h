// How attention is divided among workers. Items (query rows that share a KV head) lie one after the other,
// each with some blocks of entries; every worker gets an equal part of all blocks. An item that is cut has a
// part of its softmax from each of the workers, and these are joined in order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "runtime/device/device.h"
#include "runtime/device/host/attend_rows.h"
#include "runtime/device/host/host_device.h"
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

// Items of attention: for spans of tokens, KV heads in each, tiles of rows in each.
class AttendItems {
 public:
  explicit AttendItems(const AttentionArgs& args)
      : group_(args.n_heads / args.kv_shape.n_kv_heads),
        n_kv_heads_(args.kv_shape.n_kv_heads),
        span_tokens_(args.one_sequence ? args.n_tokens : 1),
        span_rows_(span_tokens_ * group_),
        tiles_((span_rows_ + kMaxAttendRows - 1) / kMaxAttendRows),
        count_(args.n_tokens / span_tokens_ * n_kv_heads_ * tiles_) {}

  uint32_t size() const { return count_; }
  uint32_t most_rows() const { return std::min(span_rows_, kMaxAttendRows); }
  AttendItem operator[](uint32_t i) const {
    const uint32_t first_row = i % tiles_ * kMaxAttendRows;
    return {.first_token = i / tiles_ / n_kv_heads_ * span_tokens_,
            .kv_head = i / tiles_ % n_kv_heads_,
            .first_row = first_row,
            .n_rows = std::min(kMaxAttendRows, span_rows_ - first_row)};
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
  uint32_t tiles_;
  uint32_t count_;
};

// Adds a part of a softmax to another: weighted sums [head_dim], largest score, sum of weights.
inline void JoinParts(const float* from, uint32_t head_dim, float* to) {
  const float maximum = std::max(from[head_dim], to[head_dim]);
  const float from_factor = std::exp(from[head_dim] - maximum);
  const float to_factor = std::exp(to[head_dim] - maximum);
  for (uint32_t i = 0; i < head_dim; ++i) to[i] = to_factor * to[i] + from_factor * from[i];
  to[head_dim] = maximum;
  to[head_dim + 1] = to_factor * to[head_dim + 1] + from_factor * from[head_dim + 1];
}

inline void FinishPart(const float* part, uint32_t head_dim, float* to) {
  const float factor = 1.0F / part[head_dim + 1];
  for (uint32_t i = 0; i < head_dim; ++i) to[i] = part[i] * factor;
}

// What a cut item's parts are kept in: [workers, 2 (the worker's first item, its last), rows of an item,
// part].
inline uint64_t CutPartsBytes(const ThreadPool& pool, const AttentionArgs& args) {
  if (pool.size() == 1) return 16;
  return uint64_t{pool.size()} * 2 * AttendItems(args).most_rows() *
         AttendPartFloats(args.kv_shape.head_dim) * sizeof(float);
}

// The source is what items attend to:
//   uint32_t CountBlocks(const AttendItem&) const: at least 1;
//   void LoadBlock(const AttendItem&, uint32_t nth, KvBlock*) const.
template <typename Source>
class AttendWork {
 public:
  // rounds: as in AttendRows.
  AttendWork(ThreadPool& pool, const AttentionArgs& args, const Source& source, bool rounds)
      : pool_(pool),
        args_(args),
        rounds_(rounds),
        source_(source),
        items_(args),
        head_dim_(args.kv_shape.head_dim),
        part_floats_(AttendPartFloats(head_dim_)) {
    for (uint32_t i = 0; i < items_.size(); ++i) n_blocks_ += source_.CountBlocks(items_[i]);
  }

  void Run() {
    pool_.ReserveScratch(AttendRowsBytes(head_dim_) + ItemPartsBytes());
    pool_.Run([&](uint32_t worker) { RunWorker(worker); });
    JoinCutItems();
  }

 private:
  size_t ItemPartsBytes() const { return size_t{items_.most_rows()} * part_floats_ * sizeof(float); }
  uint64_t BeginOf(uint32_t worker) const { return n_blocks_ * worker / pool_.size(); }
  float* CutPart(uint32_t worker, bool is_last) const {
    return Data<float>(args_.scratch) +
           (size_t{worker} * 2 + (is_last ? 1 : 0)) * items_.most_rows() * part_floats_;
  }

  void RunWorker(uint32_t worker) const {
    const uint64_t begin = BeginOf(worker);
    const uint64_t end = BeginOf(worker + 1);
    std::byte* memory = pool_.Scratch(worker, AttendRowsBytes(head_dim_) + ItemPartsBytes());
    auto* parts = reinterpret_cast<float*>(memory + AttendRowsBytes(head_dim_));
    uint64_t item_begin = 0;
    for (uint32_t i = 0; i < items_.size() && item_begin < end; ++i) {
      const AttendItem item = items_[i];
      const uint64_t item_end = item_begin + source_.CountBlocks(item);
      if (item_end > begin) {
        const bool is_cut = begin > item_begin || end < item_end;
        float* to = is_cut ? CutPart(worker, begin <= item_begin) : parts;
        Attend(item, static_cast<uint32_t>(std::max(begin, item_begin) - item_begin),
               static_cast<uint32_t>(std::min(end, item_end) - item_begin), memory, to);
        if (!is_cut) Finish(item, to);
      }
      item_begin = item_end;
    }
  }

  void Attend(const AttendItem& item, uint32_t first_block, uint32_t end_block, std::byte* memory,
              float* parts) const {
    const AttendRows rows{.n_rows = item.n_rows, .head_dim = head_dim_, .rounds = rounds_, .memory = memory};
    const size_t stride = size_t{args_.n_heads + 2 * args_.kv_shape.n_kv_heads} * head_dim_;
    const float* queries[kMaxAttendRows];
    for (uint32_t r = 0; r < item.n_rows; ++r) {
      queries[r] = Data<float>(args_.qkv) + items_.TokenOf(item, r) * stride +
                   size_t{items_.OutputRow(item, r) % args_.n_heads} * head_dim_;
    }
    BeginAttend(rows, queries);
    KvBlock blocks[2];
    source_.LoadBlock(item, first_block, &blocks[0]);
    for (uint32_t nth = first_block; nth < end_block; ++nth) {
      const KvBlock& block = blocks[(nth - first_block) % 2];
      KvBlock* next = nth + 1 < end_block ? &blocks[(nth + 1 - first_block) % 2] : nullptr;
      if (next != nullptr) source_.LoadBlock(item, nth + 1, next);
      if (block.n_entries > 0) AttendBlock(rows, block, next);
    }
    EndAttend(rows, parts);
  }

  // parts: of the item's rows, complete; changed.
  void Finish(const AttendItem& item, float* parts) const {
    for (uint32_t r = 0; r < item.n_rows; ++r) {
      const size_t row = items_.OutputRow(item, r);
      float* part = parts + size_t{r} * part_floats_;
      if (args_.parts_after == nullptr) {
        FinishPart(part, head_dim_, Data<float>(args_.output) + row * head_dim_);
        continue;
      }
      if (args_.parts_before != nullptr)
        JoinParts(Data<float>(args_.parts_before) + row * part_floats_, head_dim_, part);
      std::memcpy(Data<float>(args_.parts_after) + row * part_floats_, part, part_floats_ * sizeof(float));
    }
  }

  void JoinCutItems() const {
    uint64_t item_begin = 0;
    uint32_t worker = 0;
    for (uint32_t i = 0; i < items_.size(); ++i) {
      const AttendItem item = items_[i];
      const uint64_t item_end = item_begin + source_.CountBlocks(item);
      while (BeginOf(worker + 1) <= item_begin) ++worker;
      if (BeginOf(worker + 1) < item_end) {
        float* parts = CutPart(worker, BeginOf(worker) <= item_begin);
        for (uint32_t other = worker + 1; other < pool_.size() && BeginOf(other) < item_end; ++other) {
          if (BeginOf(other) == BeginOf(other + 1)) continue;
          const float* from = CutPart(other, false);
          for (uint32_t r = 0; r < item.n_rows; ++r)
            JoinParts(from + size_t{r} * part_floats_, head_dim_, parts + size_t{r} * part_floats_);
        }
        Finish(item, parts);
      }
      item_begin = item_end;
    }
  }

  ThreadPool& pool_;
  const AttentionArgs& args_;
  bool rounds_;
  const Source& source_;
  AttendItems items_;
  uint32_t head_dim_;
  uint32_t part_floats_;
  uint64_t n_blocks_ = 0;
};

}  // namespace kvrun::host
