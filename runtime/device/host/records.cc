// KV records from and to KV in memory.
#include <algorithm>
#include <cstring>

#include "platform/base/check.h"
#include "runtime/device/encode_rows.h"
#include "runtime/device/entry_space.h"
#include "runtime/device/host/attend_rows.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/record_place.h"
#include "runtime/device/host/rope.h"
#include "runtime/device/record_codec.h"
#include "runtime/model/tensor_type.h"

namespace kvrun::host {
namespace {

// group_tokens rows of K or V of a record: the first one's number there, where they lie in the KV, in bytes,
// and the row of means that they share.
struct RecordRows {
  bool is_value = false;
  size_t first = 0;
  size_t in_kv = 0;
  size_t mean = 0;
};

// Which entries of one layer's KV, of one sequence, are which records.
struct RecordCopy {
  KvShape kv;
  KvRecordShape record;
  EntrySpace space;
  uint32_t first_token = 0;
  uint32_t n_groups = 0;

  // The record in one type: its rows of a head and plane lie one after the other, as the KV's do.
  KvRecordShape InType(KvType type) const {
    return {type, type, record.n_heads, record.head_dim, record.group_tokens};
  }
  std::span<const float> MeanOf(const RecordRows& rows) const {
    return {Data<float>(space.constants) + space.means_begin + rows.mean * record.head_dim, record.head_dim};
  }
  uint32_t n_records() const { return kv.n_kv_heads / record.n_heads * n_groups; }
  size_t rows_bytes() const {
    return size_t{record.group_tokens} * record.head_dim * KvElementBytes(kv.type);
  }

  void Check() const {
    KVRUN_CHECK(record.head_dim == kv.head_dim && kv.head_dim % 2 == 0 && kv.head_dim <= kMaxCodecHeadDim);
    KVRUN_CHECK(record.n_heads == kv.n_kv_heads || record.n_heads == 1);
    KVRUN_CHECK(kv.type == KvType::kF16 || kv.type == KvType::kF32);
    KVRUN_CHECK(kv.n_sequences == 1 && record.group_tokens > 0);
    KVRUN_CHECK(uint64_t{first_token} + uint64_t{n_groups} * record.group_tokens <= kv.n_ctx);
  }

  // Calls visit(RecordRows) for each head and plane of a record.
  template <typename Visitor>
  void ForRows(size_t nth, const Visitor& visit) const {
    const size_t first_head = nth / n_groups * record.n_heads;
    const size_t token = first_token + nth % n_groups * record.group_tokens;
    for (size_t head = 0; head < record.n_heads; ++head) {
      for (size_t plane = 0; plane < 2; ++plane) {
        const size_t mean = (first_head + head) * 2 + plane;
        const size_t row = mean * kv.n_ctx + token;
        visit(RecordRows{.is_value = plane != 0,
                         .first = head * record.group_tokens,
                         .in_kv = row * record.head_dim * KvElementBytes(kv.type),
                         .mean = mean});
      }
    }
  }
};

// The record's rows of one head and plane.
void DecodeTo(const RecordCopy& copy, const PlanePlace& place, const RecordRows& of, const std::byte* record,
              float* scratch, std::byte* to) {
  const uint32_t head_dim = copy.kv.head_dim;
  const size_t stride = DecodedRowFloats(head_dim);
  const size_t row_bytes = size_t{head_dim} * KvElementBytes(copy.kv.type);
  for (uint32_t begin = 0; begin < copy.record.group_tokens; begin += kBlockEntries) {
    const uint32_t n = std::min(copy.record.group_tokens - begin, kBlockEntries);
    const std::byte* rows[kBlockEntries];
    const std::byte* scales[kBlockEntries];
    for (uint32_t i = 0; i < n; ++i) {
      rows[i] = record + place.row(of.first + begin + i);
      scales[i] = record + place.scales(of.first + begin + i);
    }
    DecodeRows(place.type, head_dim, n, rows, scales, scratch);
    for (uint32_t i = 0; i < n; ++i, to += row_bytes) {
      if (copy.space.is_used()) OutOfSpace(copy.MeanOf(of), {scratch + i * stride, head_dim});
      if (copy.kv.type == KvType::kF32) {
        std::memcpy(to, scratch + i * stride, row_bytes);
      } else {
        FloatsToHalves(scratch + i * stride, head_dim, reinterpret_cast<uint16_t*>(to));
      }
    }
  }
}

// The KV's rows of one head and plane, in the records' space.
void LoadInSpace(const RecordCopy& copy, const RecordRows& of, const std::byte* from, float* to) {
  const uint32_t head_dim = copy.kv.head_dim;
  for (uint32_t row = 0; row < copy.record.group_tokens; ++row, to += head_dim) {
    const std::span<float> values(to, head_dim);
    if (copy.kv.type == KvType::kF32) {
      std::memcpy(to, from + row * values.size_bytes(), values.size_bytes());
    } else {
      LoadHalves(from + row * values.size() * sizeof(uint16_t), values);
    }
    IntoSpace(copy.MeanOf(of), values);
  }
}

}  // namespace

void EncodeRecords(ThreadPool& pool, const EncodeRecordsArgs& args) {
  const RecordCopy copy{args.kv_shape, args.record, args.space, args.first_token, args.n_groups};
  copy.Check();
  const KvRecordShape loaded = copy.InType(args.space.is_used() ? KvType::kF32 : args.kv_shape.type);
  const PlanePlace places[2] = {{loaded, false}, {loaded, true}};
  const auto* from = Data<std::byte>(args.kv);
  auto* to = Data<std::byte>(args.records);
  pool.ReserveScratch(loaded.size_bytes());
  pool.ParallelFor(copy.n_records(), 1, [&](size_t begin, size_t end, uint32_t worker) {
    std::byte* rows = pool.Scratch(worker, loaded.size_bytes());
    for (size_t i = begin; i < end; ++i) {
      copy.ForRows(i, [&](const RecordRows& of) {
        std::byte* const first = rows + places[of.is_value ? 1 : 0].row(of.first);
        if (args.space.is_used())
          LoadInSpace(copy, of, from + of.in_kv, reinterpret_cast<float*>(first));
        else
          std::memcpy(first, from + of.in_kv, copy.rows_bytes());
      });
      std::byte* one = to + i * args.record.size_bytes();
      TranscodeRecord(loaded, {rows, loaded.size_bytes()}, args.record, {one, args.record.size_bytes()});
    }
  });
}

void DecodeRecords(ThreadPool& pool, const DecodeRecordsArgs& args) {
  const RecordCopy copy{args.kv_shape, args.record, args.space, args.first_token, args.n_groups};
  copy.Check();
  const PlanePlace places[2] = {{args.record, false}, {args.record, true}};
  const auto* from = Data<std::byte>(args.records);
  auto* to = Data<std::byte>(args.kv);
  const size_t scratch_bytes = kBlockEntries * DecodedRowFloats(args.record.head_dim) * sizeof(float);
  pool.ReserveScratch(scratch_bytes);
  pool.ParallelFor(copy.n_records(), 1, [&](size_t begin, size_t end, uint32_t worker) {
    auto* scratch = reinterpret_cast<float*>(pool.Scratch(worker, scratch_bytes));
    for (size_t i = begin; i < end; ++i) {
      const std::byte* one = from + i * args.record.size_bytes();
      copy.ForRows(i, [&](const RecordRows& rows) {
        const PlanePlace& place = places[rows.is_value ? 1 : 0];
        if (place.type == args.kv_shape.type && !args.space.is_used()) {
          std::memcpy(to + rows.in_kv, one + place.row(rows.first), copy.rows_bytes());
        } else {
          DecodeTo(copy, place, rows, one, scratch, to + rows.in_kv);
        }
      });
    }
  });
}

}  // namespace kvrun::host
