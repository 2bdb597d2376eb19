// What the host device's operations are made of: one function for each of CommandList's, with its arguments
// (runtime/device/device.h says what they hold). Each divides its work among the pool's workers; none
// allocates but by ThreadPool::Scratch.
//
// Kernels are compiled for several instruction sets (Highway's foreach_target) and chosen at run time. Sums
// are in a fixed order: results do not depend on the time of day, but may on the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/host/thread_pool.h"

namespace kvrun::host {

// elementwise.cc
void RmsNorm(ThreadPool& pool, const Buffer& x, const Buffer& weight, float epsilon, uint32_t n_rows,
             uint32_t n_cols, Buffer* out);
void SwiGlu(ThreadPool& pool, const Buffer& gate_up, uint32_t n_tokens, uint32_t n_ff, Buffer* out);
void GatherRows(ThreadPool& pool, const Buffer& x, const Buffer& step, uint32_t n_rows, uint32_t n_cols,
                Buffer* out);

// matrix.cc, matmul.cc: packed weights, and products with them.
Result<std::unique_ptr<Matrix>> PackMatrix(std::shared_ptr<MemoryAccount> account, ThreadPool& pool,
                                           TensorType type, uint32_t n_cols,
                                           std::span<const MatrixSource> sources);
// exact: float activations; else activations are rounded to 8 bits, in blocks of 32 with a scale each, to 16
// where a block is larger than most of its row.
void MatMul(ThreadPool& pool, const MatMulArgs& args, bool exact);
void Embed(ThreadPool& pool, const Matrix& table, const Buffer& step, uint32_t n_tokens, Buffer* out);

// attention.cc: KV in memory.
void RopeAndStore(ThreadPool& pool, const AttentionArgs& args);
uint64_t AttendScratchBytes(const AttentionArgs& args);
// exact: as in MatMul; else rows may be rounded, as attend_rounded-inl.h says of many.
void Attend(ThreadPool& pool, const AttentionArgs& args, bool exact);
void FinishAttention(ThreadPool& pool, const AttentionArgs& args);

// slots.cc, records.cc: KV in records.
void RopeAndEncode(ThreadPool& pool, const SlotAttentionArgs& args);
uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs& args);
// exact: as in MatMul; else few rows are rounded as attend_few_rounded-inl.h says.
void AttendSlots(ThreadPool& pool, const SlotAttentionArgs& args, bool exact);
void EncodeRecords(ThreadPool& pool, const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                   uint32_t n_groups, const KvRecordShape& record, const EntrySpace& space, Buffer* records);
void DecodeRecords(ThreadPool& pool, const Buffer& records, const KvRecordShape& record,
                   const EntrySpace& space, uint32_t n_groups, uint32_t first_token, const KvShape& kv_shape,
                   Buffer* kv);

// index.cc: scores, choice and upkeep of the index; sums for adapters.
uint64_t ScoreScratchBytes(const ScoreArgs& args);
// exact: as in MatMul; else queries of an index of int4 may be rounded, as score_rounded-inl.h says.
void ScoreAndSelect(ThreadPool& pool, const ScoreArgs& args, bool exact);
void ProjectKeys(ThreadPool& pool, const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                 uint32_t n_tokens, const IndexSides& sides, uint32_t rank, Buffer* out);
void AccumulateGram(ThreadPool& pool, const GramArgs& args);

// row_mass.cc: how much attention entries receive from a prompt.
void SumWeights(ThreadPool& pool, const RowMassArgs& args);
void AttentionMass(ThreadPool& pool, const RowMassArgs& args);

// rates.cc: bounds for benchmarks.
void AluRate(ThreadPool& pool, uint32_t n_groups, uint32_t n_steps, Buffer* values);
void ReadRate(ThreadPool& pool, uint32_t n_groups, uint32_t n_steps, Buffer* values);

}  // namespace kvrun::host
