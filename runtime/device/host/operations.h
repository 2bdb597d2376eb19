// What the host device's operations are made of: one function for each (runtime/device/operation.h), with its
// arguments. Each divides its work among the pool's workers; none
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
void RmsNorm(ThreadPool& pool, const RmsNormArgs& args);
void GatedUnit(ThreadPool& pool, const GatedUnitArgs& args);
void SigmoidGate(ThreadPool& pool, const SigmoidGateArgs& args);
void GatedNorm(ThreadPool& pool, const GatedNormArgs& args);
void GatherRows(ThreadPool& pool, const GatherRowsArgs& args);
void Copy(ThreadPool& pool, const CopyArgs& args);

// matrix.cc, matmul.cc: packed weights, and products with them.
Result<std::unique_ptr<Matrix>> PackMatrix(std::shared_ptr<MemoryAccount> account, ThreadPool& pool,
                                           TensorType type, uint32_t n_cols,
                                           std::span<const MatrixSource> sources);
// exact: float activations; else activations are rounded to 8 bits, in blocks of 32 with a scale each, to 16
// where a block is larger than most of its row.
void MatMul(ThreadPool& pool, const MatMulArgs& args, bool exact);
void Embed(ThreadPool& pool, const EmbedArgs& args);

// experts.cc, expert_matmul.cc: mixtures of experts. exact: as in MatMul.
void ChooseExperts(ThreadPool& pool, const ChooseExpertsArgs& args);
void ExpertMatMul(ThreadPool& pool, const ExpertMatMulArgs& args, bool exact);

// short_convolution.cc, delta_rule.cc: layers that keep a state in place of KV.
void ShortConvolution(ThreadPool& pool, const ShortConvolutionArgs& args);
void DeltaRule(ThreadPool& pool, const DeltaRuleArgs& args);

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
void EncodeRecords(ThreadPool& pool, const EncodeRecordsArgs& args);
void DecodeRecords(ThreadPool& pool, const DecodeRecordsArgs& args);

// index.cc: scores, choice and upkeep of the index; sums for adapters.
uint64_t ScoreScratchBytes(const ScoreArgs& args);
// exact: as in MatMul; else queries of an index of int4 may be rounded, as score_rounded-inl.h says.
void ScoreAndSelect(ThreadPool& pool, const ScoreArgs& args, bool exact);
void ProjectKeys(ThreadPool& pool, const ProjectKeysArgs& args);
void AccumulateGram(ThreadPool& pool, const GramArgs& args);

// row_mass.cc: how much attention entries receive from a prompt.
void SumWeights(ThreadPool& pool, const RowMassArgs& args);
void AttentionMass(ThreadPool& pool, const RowMassArgs& args);

// rates.cc: bounds for benchmarks.
void Rate(ThreadPool& pool, const RateArgs& args);

}  // namespace kvrun::host
