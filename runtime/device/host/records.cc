// KV records from and to KV in memory.
#include <algorithm>
#include <cstring>

#include "platform/base/check.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/record_codec.h"

namespace kvrun::host {
namespace {

// Which entries of one layer's KV, of one sequence, are which records.
struct RecordCopy {
  KvShape kv;
  KvRecordShape record;
  uint32_t first_token = 0;
  uint32_t n_groups = 0;

  // The record as the KV stores it: its rows of a head and plane are the KV's, one after the other.
  KvRecordShape resident() const {
    return {kv.type, kv.type, record.n_heads, record.head_dim, record.group_tokens};
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

  // Calls visit(offset in the KV, offset in a resident record) for each of a record's rows_bytes().
  template <typename Visitor>
  void ForRows(size_t nth, const Visitor& visit) const {
    const size_t first_head = nth / n_groups * record.n_heads;
    const size_t token = first_token + nth % n_groups * record.group_tokens;
    for (size_t head = 0; head < record.n_heads; ++head) {
      for (size_t plane = 0; plane < 2; ++plane) {
        const size_t row = ((first_head + head) * 2 + plane) * kv.n_ctx + token;
        visit(row * record.head_dim * KvElementBytes(kv.type),
              (plane * record.n_heads + head) * rows_bytes());
      }
    }
  }
};

}  // namespace

void EncodeRecords(ThreadPool& pool, const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                   uint32_t n_groups, const KvRecordShape& record, Buffer* records) {
  const RecordCopy copy{kv_shape, record, first_token, n_groups};
  copy.Check();
  const KvRecordShape resident = copy.resident();
  const auto* from = Data<std::byte>(&kv);
  auto* to = Data<std::byte>(records);
  pool.ReserveScratch(resident.size_bytes());
  pool.ParallelFor(copy.n_records(), 1, [&](size_t begin, size_t end, uint32_t worker) {
    std::byte* rows = pool.Scratch(worker, resident.size_bytes());
    for (size_t i = begin; i < end; ++i) {
      copy.ForRows(i, [&](size_t in_kv, size_t in_record) {
        std::memcpy(rows + in_record, from + in_kv, copy.rows_bytes());
      });
      std::byte* one = to + i * record.size_bytes();
      TranscodeRecord(resident, {rows, resident.size_bytes()}, record, {one, record.size_bytes()});
    }
  });
}

void DecodeRecords(ThreadPool& pool, const Buffer& records, const KvRecordShape& record, uint32_t n_groups,
                   uint32_t first_token, const KvShape& kv_shape, Buffer* kv) {
  const RecordCopy copy{kv_shape, record, first_token, n_groups};
  copy.Check();
  const KvRecordShape resident = copy.resident();
  const auto* from = Data<std::byte>(&records);
  auto* to = Data<std::byte>(kv);
  pool.ReserveScratch(resident.size_bytes());
  pool.ParallelFor(copy.n_records(), 1, [&](size_t begin, size_t end, uint32_t worker) {
    std::byte* rows = pool.Scratch(worker, resident.size_bytes());
    for (size_t i = begin; i < end; ++i) {
      const std::byte* one = from + i * record.size_bytes();
      if (record == resident) {
        rows = const_cast<std::byte*>(one);
      } else {
        TranscodeRecord(record, {one, record.size_bytes()}, resident, {rows, resident.size_bytes()});
      }
      copy.ForRows(i, [&](size_t in_kv, size_t in_record) {
        std::memcpy(to + in_kv, rows + in_record, copy.rows_bytes());
      });
    }
  });
}

}  // namespace kvrun::host
