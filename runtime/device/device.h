// What computes: a device carries out operations on buffers, in the order in which they were recorded.
//
// The engine sees nothing of Vulkan. An operation is coarse (a matrix product, not an instruction), so that a
// device may fuse, tile and repack as suits it. Every operation has one scalar reference in tests/support,
// which each device is compared with.
//
// Threads: a Device may be used from several threads; a CommandList, Buffer or Matrix by one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/buffer.h"
#include "runtime/device/operation.h"

namespace kvrun {

// Operations are carried out as if one after another. Recorded once, finished, then submitted any number of
// times, each time after the one before was waited for. All that an operation names must outlive the list.
class CommandList {
 public:
  virtual ~CommandList() = default;

  virtual Status Add(const Operation& operation) = 0;
  // What was recorded so far needs nothing of what Submit's wait_host stands for: a device may begin with it
  // and wait here. At most once in a list.
  virtual Status AwaitHost() { return Status::Ok(); }
  // Operations from one BeginStrand to the next, and from the last to EndStrands, need nothing of those of
  // the other strands, nor change what these need: a device may carry out strands side by side. What waits
  // for the host is not in one.
  virtual void BeginStrand() {}
  virtual void EndStrands() {}
  // Ends recording. What kReadback buffers hold is the host's to read after Device::Wait.
  virtual Status Finish() = 0;

  // --- Add, of each operation.
  Status Embed(const EmbedArgs& args) { return Add(args); }
  Status Embed(const Matrix& table, const Buffer& step, uint32_t n_tokens, Buffer* out) {
    return Add(EmbedArgs{&table, &step, n_tokens, out});
  }
  Status RmsNorm(const RmsNormArgs& args) { return Add(args); }
  Status RmsNorm(const Buffer& x, const Buffer& weight, float epsilon, uint32_t n_rows, uint32_t n_cols,
                 Buffer* out) {
    return Add(RmsNormArgs{&x, &weight, epsilon, n_rows, n_cols, out});
  }
  // output[t, r] = sum over c of weight[r, c] * input[t, c], with what comes before and after it.
  Status MatMul(const MatMulArgs& args) { return Add(args); }
  Status GatedUnit(const GatedUnitArgs& args) { return Add(args); }
  // gate_up: float [n_tokens, 2 * n_ff]; out = silu(gate) * up, float [n_tokens, n_ff].
  Status SwiGlu(const Buffer& gate_up, uint32_t n_tokens, uint32_t n_ff, Buffer* out) {
    return Add(GatedUnitArgs{&gate_up, n_tokens, n_ff, out, Activation::kSilu});
  }
  Status SigmoidGate(const SigmoidGateArgs& args) { return Add(args); }
  // out[i] = x[step.tokens[i].output_row], float [n_rows, n_cols].
  Status GatherRows(const Buffer& x, const Buffer& step, uint32_t n_rows, uint32_t n_cols, Buffer* out) {
    return Add(GatherRowsArgs{&x, &step, n_rows, n_cols, out});
  }
  Status Copy(const CopyArgs& args) { return Add(args); }
  Status ChooseExperts(const ChooseExpertsArgs& args) { return Add(args); }
  Status ExpertMatMul(const ExpertMatMulArgs& args) { return Add(args); }
  Status ShortConvolution(const ShortConvolutionArgs& args) { return Add(args); }
  Status DeltaRule(const DeltaRuleArgs& args) { return Add(args); }
  Status GatedNorm(const GatedNormArgs& args) { return Add(args); }
  // Normalises (with norms) and rotates Q in place; writes normalised, rotated K and V into the KV buffer at
  // each row's position, or its place in a window's ring.
  Status RopeAndStore(const AttentionArgs& args) { return Add(RopeAndStoreOp{args}); }
  // output[t] = softmax(scores) V over positions 0..position(t) of the row's sequence, or those of a window;
  // scores are Q K^T / sqrt(head_dim), or as score_scale and score_cap say.
  Status Attend(const AttentionArgs& args) { return Add(AttendOp{args}); }
  // RopeAndStore and Attend, of rows that are not a prompt's; what it leaves in qkv is nothing to rely on.
  Status AttendNew(const AttentionArgs& args) { return Add(AttendNewOp{args}); }
  // output of all entries that went into args.parts_after.
  Status FinishAttention(const AttentionArgs& args) { return Add(FinishAttentionOp{args}); }
  // As RopeAndStore, but K and V are encoded into the window's slots.
  Status RopeAndEncode(const SlotAttentionArgs& args) { return Add(RopeAndEncodeOp{args}); }
  // The same over the entries that the mapping tables name.
  Status AttendSlots(const SlotAttentionArgs& args) { return Add(AttendSlotsOp{args}); }
  // RopeAndEncode and AttendSlots; likewise.
  Status AttendNewSlots(const SlotAttentionArgs& args) { return Add(AttendNewSlotsOp{args}); }
  Status EncodeRecords(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token, uint32_t n_groups,
                       const KvRecordShape& record, const EntrySpace& space, Buffer* records) {
    return Add(EncodeRecordsArgs{&kv, kv_shape, first_token, n_groups, record, space, records});
  }
  // The reverse, into the KV buffer: what was stored, as f16 or f32.
  Status DecodeRecords(const Buffer& records, const KvRecordShape& record, const EntrySpace& space,
                       uint32_t n_groups, uint32_t first_token, const KvShape& kv_shape, Buffer* kv) {
    return Add(DecodeRecordsArgs{&records, record, space, n_groups, first_token, kv_shape, kv});
  }
  // Normalises and rotates the query, projects it, scores every group that can be chosen, and chooses.
  // Softmaxes run over all rows of groups that can be chosen. Equal scores: the lower group.
  Status ScoreAndSelect(const ScoreArgs& args) { return Add(args); }
  Status ProjectKeys(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token, uint32_t n_tokens,
                     const IndexSides& sides, uint32_t rank, Buffer* out) {
    return Add(ProjectKeysArgs{&kv, kv_shape, first_token, n_tokens, sides, rank, out});
  }
  Status AccumulateGram(const GramArgs& args) { return Add(args); }
  Status SumWeights(const RowMassArgs& args) { return Add(SumWeightsOp{args}); }
  Status AttentionMass(const RowMassArgs& args) { return Add(AttentionMassOp{args}); }
  Status AluRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) {
    return Add(RateArgs{RateArgs::Kind::kArithmetic, n_groups, n_steps, values});
  }
  Status ReadRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) {
    return Add(RateArgs{RateArgs::Kind::kReading, n_groups, n_steps, values});
  }
};

struct DeviceInfo {
  std::string name;
  std::string kind;  // "gpu", "integrated", "virtual", "cpu"
  std::string driver;
  std::string plan;                // one line: the paths chosen
  std::vector<std::string> notes;  // quirks that applied, fall-backs taken
  bool is_cpu = false;
  bool decodes_on_cpu = false;    // whatever computes its prompts
  uint64_t max_buffer_bytes = 0;  // the largest Buffer that an operation can use, but for kKv
};

struct OperationTime {
  std::string name;  // the variant that ran
  uint64_t count = 0;
  double milliseconds = 0.0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  // `part` names it in statistics and messages ("kv", "activations").
  virtual Result<std::unique_ptr<Buffer>> CreateBuffer(uint64_t size_bytes, BufferUse use,
                                                       std::string_view part) = 0;
  // Whether a buffer of BufferUse::kKv can hold it, memory permitting.
  virtual bool FitsKv(const KvShape& shape) const { return shape.size_bytes() <= info().max_buffer_bytes; }
  // A kDevice buffer with this content.
  virtual Result<std::unique_ptr<Buffer>> CreateConstants(std::span<const std::byte> bytes,
                                                          std::string_view part) = 0;
  // The sources stacked in order, all of one type and n_cols; copied, so that they may go.
  virtual Result<std::unique_ptr<Matrix>> CreateMatrix(TensorType type, uint32_t n_cols,
                                                       std::span<const MatrixSource> sources) = 0;
  // What AttentionArgs::scratch must hold.
  virtual uint64_t AttendScratchBytes(const AttentionArgs& args) const = 0;
  // With the same sources, and the same of them with a mass.
  virtual uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs& args) const = 0;
  // What ScoreArgs::scratch must hold.
  virtual uint64_t ScoreScratchBytes(const ScoreArgs& args) const = 0;

  virtual Result<std::unique_ptr<CommandList>> CreateCommandList() = 0;
  // Starts a finished list, once the host has signalled `wait_host` (0: at once); answers the timeline value
  // that Wait takes. Where the device has no timeline semaphores, this returns only when `wait_host` was
  // signalled, which must come from another thread.
  virtual Result<uint64_t> Submit(CommandList& list, uint64_t wait_host = 0) = 0;
  struct Submission {
    CommandList* list = nullptr;
    uint64_t wait_host = 0;
  };
  // Submit of each in turn, in one call of the driver where that is possible. `submitted` is told each one's
  // place and value; where something fails, only of those before it.
  virtual Status SubmitAll(std::span<const Submission> submissions,
                           const std::function<void(size_t, uint64_t)>& submitted) {
    for (size_t i = 0; i < submissions.size(); ++i) {
      KVRUN_ASSIGN_OR_RETURN(const uint64_t value, Submit(*submissions[i].list, submissions[i].wait_host));
      submitted(i, value);
    }
    return Status::Ok();
  }
  // Values for SignalHost, one after another: the first of `count`. They are signalled in order, whoever
  // reserved them.
  virtual uint64_t ReserveHostValues(uint32_t count) = 0;
  // By the host; values only grow. Every value that a stage waits for must be signalled in the end, whatever
  // fails.
  virtual Status SignalHost(uint64_t value) = 0;
  // As long as it takes; all lists up to `value` are complete afterwards.
  virtual Status Wait(uint64_t value) = 0;
  // Submit and Wait.
  Status Execute(CommandList& list) {
    KVRUN_ASSIGN_OR_RETURN(const uint64_t value, Submit(list));
    return Wait(value);
  }
  // The latest value that is reached; what Wait does for the host remains to be done.
  virtual Result<uint64_t> Completed() = 0;

  // Compiled kernels that no list needs are given up; they are made again where one does. Some drivers keep
  // megabytes for each.
  virtual Status DropUnusedKernels() = 0;

  // Bytes of live buffers by part, alignment included.
  struct MemoryPart {
    std::string part;
    uint64_t bytes;
  };
  virtual std::vector<MemoryPart> MemoryInUse() const = 0;
  // Bytes of a buffer, whatever its use, from offset_bytes on. Both wait for all that was submitted, and are
  // slow: what is moved often is moved by lists.
  virtual Status Download(const Buffer& from, uint64_t offset_bytes, std::span<std::byte> to) = 0;
  virtual Status Upload(std::span<const std::byte> from, Buffer* to, uint64_t offset_bytes) = 0;
  Status Download(const Buffer& from, std::span<std::byte> to) { return Download(from, 0, to); }

  // Empty unless the device was opened with profiling; sums since the last call.
  virtual std::vector<OperationTime> TakeOperationTimes() = 0;
};

}  // namespace kvrun
