// A list of a pair: kept by one of the two devices, which its first operation names.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/pair/pair_memory.h"

namespace kvrun::pair {

class PairDevice;

class PairCommandList : public CommandList {
 public:
  explicit PairCommandList(PairDevice& device) : device_(device) {}

  Status Embed(const Matrix& table, const Buffer& step, uint32_t n_tokens, Buffer* out) override;
  Status RmsNorms(const Buffer& x, const NormTarget& first, const NormTarget& second, float epsilon,
                  uint32_t n_rows, uint32_t n_cols) override;
  Status RmsNorm(const Buffer& x, const Buffer& weight, float epsilon, uint32_t n_rows, uint32_t n_cols,
                 Buffer* out) override;
  Status MatMul(const MatMulArgs& args) override;
  Status RopeAndStore(const AttentionArgs& args) override;
  Status Attend(const AttentionArgs& args) override;
  Status FinishAttention(const AttentionArgs& args) override;
  Status SwiGlu(const Buffer& gate_up, uint32_t n_tokens, uint32_t n_ff, Buffer* out) override;
  Status GatherRows(const Buffer& x, const Buffer& step, uint32_t n_rows, uint32_t n_cols,
                    Buffer* out) override;
  Status RopeAndEncode(const SlotAttentionArgs& args) override;
  Status AttendSlots(const SlotAttentionArgs& args) override;
  Status EncodeRecords(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token, uint32_t n_groups,
                       const KvRecordShape& record, const EntrySpace& space, Buffer* records) override;
  Status DecodeRecords(const Buffer& records, const KvRecordShape& record, const EntrySpace& space,
                       uint32_t n_groups, uint32_t first_token, const KvShape& kv_shape, Buffer* kv) override;
  Status ScoreAndSelect(const ScoreArgs& args) override;
  Status ProjectKeys(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token, uint32_t n_tokens,
                     const IndexSides& sides, uint32_t rank, Buffer* out) override;
  Status AccumulateGram(const GramArgs& args) override;
  Status SumWeights(const RowMassArgs& args) override;
  Status AttentionMass(const RowMassArgs& args) override;
  Status AluRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) override;
  Status ReadRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) override;
  Status AwaitHost() override;
  Status Finish() override;

  // Of a finished list.
  Side side() const { return side_; }
  CommandList& own() { return *own_; }
  std::span<PairBuffer* const> written() const { return written_; }

 private:
  // Before an operation on `rows` rows: the first decides.
  Status Begin(uint32_t rows);
  Status BeginOn(Side side);

  PairDevice& device_;
  Side side_ = Side::kDecode;
  std::unique_ptr<CommandList> own_;  // null before the first operation
  std::vector<PairBuffer*> written_;  // that the list's operations may write
  Translator own_args_{side_};        // to the device's own
};

}  // namespace kvrun::pair
