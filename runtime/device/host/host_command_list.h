// Recorded operations of the host device: calls, kept with their arguments.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/host/host_device.h"

namespace kvrun::host {

struct HostOperation {
  std::string_view name;  // a literal: "matmul_q4_1", for profiles
  Buffer* result;         // or one of them
  std::function<void(ThreadPool&)> run;
};

class HostCommandList : public CommandList {
 public:
  explicit HostCommandList(HostDevice& device) : device_(device) {}

  Status Embed(const Matrix& table, const Buffer& step, uint32_t n_tokens, Buffer* out) override;
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
  Status AwaitHost() override {
    await_at_ = operations_.size();
    return Status::Ok();
  }
  Status Finish() override { return Status::Ok(); }

  std::span<const HostOperation> operations() const { return operations_; }
  // Before which of them the host's value is waited for.
  size_t await_at() const { return await_at_; }

 private:
  template <typename F>
  Status Record(std::string_view name, Buffer* result, F run) {
    operations_.push_back({name, result, std::move(run)});
    return Status::Ok();
  }

  HostDevice& device_;
  std::vector<HostOperation> operations_;
  size_t await_at_ = 0;
};

}  // namespace kvrun::host
