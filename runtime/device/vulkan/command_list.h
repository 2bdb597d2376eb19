// A recorded list of dispatches. Barriers are put where an operation uses a buffer that an earlier one wrote,
// or writes one that an earlier one used.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/vulkan/commands.h"
#include "platform/vulkan/pipeline.h"
#include "platform/vulkan/timestamp_pool.h"
#include "runtime/device/vulkan/compute_device.h"
#include "runtime/device/vulkan/kernel_plan.h"

namespace kvrun {

enum class Access : uint8_t { kRead, kWrite, kReadWrite };

struct Binding {
  const DeviceBuffer* memory = nullptr;
  Access access = Access::kRead;
  // A part of it, from an offset that the device can bind; 0: all.
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

struct Dispatch {
  const KernelChoice& kernel;
  std::span<const Binding> storage;
  const VulkanBuffer* step = nullptr;  // the uniform buffer after the storage buffers, if the kernel has one
  std::span<const std::byte> params;   // push constants
  std::string_view note = {};          // in profiles, after the variant's name
};

// `params` as push constants; it must outlive them.
template <typename Params>
std::span<const std::byte> ParamBytes(const Params& params) {
  return std::as_bytes(std::span<const Params, 1>(&params, 1));
}

struct ProjectKeysParams;
struct ScorePass;
struct ScorePlan;

class VulkanCommandList : public CommandList {
 public:
  static Result<std::unique_ptr<VulkanCommandList>> Create(VulkanComputeDevice& device);
  ~VulkanCommandList() override;

  Status Add(const Operation& operation) override;
  Status AwaitHost() override;
  Status Finish() override;

  // In order; each is a submission of its own, so that no single one keeps the device for too long.
  std::span<const VkCommandBuffer> parts() const { return parts_; }
  uint64_t n_dispatches() const { return n_dispatches_; }
  uint64_t n_barriers() const { return n_barriers_; }
  // Before a submission: what the host wrote reaches the device. After it: what the device wrote reaches the
  // host.
  Status FlushUploads() const;
  Status InvalidateReadbacks() const;
  // True once, for the first call: drivers compile kernels when a list first runs.
  bool TakeFirstRun() { return std::exchange(is_first_run_, false); }
  // Adds the times of the last submission, by variant.
  Status AddTimes(std::map<std::string, OperationTime>* times) const;

 private:
  VulkanCommandList(VulkanComputeDevice& device, VulkanComputeDevice::ListParts made_of);

  Status CheckLimits(const Dispatch& dispatch) const;
  Status Record(const Dispatch& dispatch);
  // One launcher for each operation (add_operation.cc); what each does is several dispatches, or one.
  Status Launch(const EmbedArgs& args);
  Status Launch(const RmsNormArgs& args);
  Status Launch(const MatMulArgs& args);
  Status Launch(const GatedUnitArgs& args);
  Status Launch(const SigmoidGateArgs& args);
  Status Launch(const GatherRowsArgs& args);
  Status Launch(const CopyArgs& args);
  Status Launch(const ChooseExpertsArgs& args);
  Status Launch(const ExpertMatMulArgs& args);
  Status Launch(const ShortConvolutionArgs& args);
  Status Launch(const DeltaRuleArgs& args);
  Status Launch(const GatedNormArgs& args);
  Status Launch(const RopeAndStoreOp& op);
  Status Launch(const AttendOp& op);
  Status Launch(const AttendNewOp& op);
  Status Launch(const FinishAttentionOp& op);
  Status Launch(const RopeAndEncodeOp& op);
  Status Launch(const AttendSlotsOp& op);
  Status Launch(const AttendNewSlotsOp& op);
  Status Launch(const EncodeRecordsArgs& args);
  Status Launch(const DecodeRecordsArgs& args);
  Status Launch(const ScoreArgs& args);
  Status Launch(const ProjectKeysArgs& args);
  Status Launch(const GramArgs& args);
  Status Launch(const SumWeightsOp& op);
  Status Launch(const AttentionMassOp& op);
  Status Launch(const RateArgs& args);
  // What it computes as one (FusionOf).
  Status Multiply(const MatMulArgs& args);
  // Whether the kernel has a variant that reads texels, and all that it reads can be read so.
  bool ReadsTexels(const Dispatch& dispatch) const;
  // Of a layer's KV: as many streams as can be bound at once.
  struct KvWindow {
    Binding binding;
    uint32_t first_stream = 0;
    uint32_t n_streams = 0;
  };
  std::vector<KvWindow> KvWindows(const Buffer& buffer, const KvShape& kv, Access access) const;
  Status CombineSplits(const AttentionParts& parts, uint32_t n_splits, uint32_t n_rows, uint32_t head_dim,
                       Buffer* output);
  // Of AttendSlots, where records have a space of their own.
  Status CombineInSpace(const SlotAttentionArgs& args, uint32_t n_splits);
  Status AttendMerged(const SlotAttentionArgs& args, const AttendSlotsPlan& plan);
  // Of one source.
  Status AttendSource(const SlotAttentionArgs& args, const AttendSlotsPlan& plan, uint32_t nth);
  Status JoinSlotMass(const SlotAttentionArgs& args, const AttendSlotsPlan& plan, uint32_t nth);
  // Products of `n` tokens' uses of experts, from `first` on, to an output that begins with theirs.
  Status ExpertProducts(const ExpertMatMulArgs& args, uint32_t first, uint32_t n, const DeviceBuffer* output);
  // Of its uses: which of them have the same expert (shaders/group_experts.comp).
  Status GroupExperts(const ExpertMatMulArgs& args, uint32_t first_use, uint32_t n_uses,
                      const ExpertsChoice& choice, const DeviceBuffer* groups);
  // At least so much of it, for what is recorded next.
  Result<const DeviceBuffer*> TakeWorkspace(Workspace which, uint64_t size_bytes);
  // In which workgroups count themselves (shaders/include/last_workgroup.glsl).
  Result<const DeviceBuffer*> Counters();
  // The steps of ScoreAndSelect.
  Status RotateQuery(const ScoreArgs& args);
  Status ProjectQuery(const ScoreArgs& args, const ScorePlan& score);
  Status SignQuery(const ScoreArgs& args, const ScorePlan& score);
  Status ScoreGroups(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass);
  Status SampleGroups(const ScoreArgs& args, const ScorePlan& score, const ChooseAndSample& rule);
  Status ProjectAndScoreRows(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass);
  Status MeanQueries(const ScoreArgs& args, const ScorePlan& score);
  Status SelectGroups(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass);
  Status ScoreKept(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass);
  Status ScoreEntries(const ScoreArgs& args, const ScorePlan& score, const ScorePass& pass,
                      std::string_view kind, uint32_t first_row, uint32_t groups_y);
  // Keys in float rows ("rows_f32") or in a KV buffer ("keys_f16", "keys_f32").
  Status BeginPart();
  void OrderAfterEarlier(std::span<const Binding> storage);
  // That the host reads what is written to it, or writes what is read; of its first bytes alone.
  void NoteHostBuffer(const VulkanBuffer& buffer);
  void NoteHostBuffer(const VulkanBuffer& buffer, uint64_t length_bytes);
  void NoteTime(const std::string& variant);  // of what was recorded last
  const DeviceBuffer* MemoryOrEmpty(const Buffer* buffer) const;

  VulkanComputeDevice& device_;
  VulkanComputeDevice::ListParts made_of_;
  std::vector<VkCommandBuffer> parts_;
  std::vector<std::shared_ptr<const ComputePipeline>> pipelines_;  // that the list runs
  VkCommandBuffer commands_ = VK_NULL_HANDLE;                      // the last part
  bool is_first_run_ = true;
  bool waits_for_host_ = false;  // what is recorded next is the first that needs what the host wrote
  uint64_t n_dispatches_ = 0;
  uint64_t n_barriers_ = 0;
  uint32_t dispatches_ = 0;                   // in the last part
  std::vector<const DeviceBuffer*> read_;     // since the last barrier
  std::vector<const DeviceBuffer*> written_;  // since the last barrier
  std::vector<std::shared_ptr<const VulkanBuffer>> workspaces_;
  struct HostRange {
    const VulkanBuffer* buffer = nullptr;
    uint64_t length_bytes = 0;
  };
  std::vector<HostRange> uploads_;
  std::vector<HostRange> readbacks_;
  std::optional<TimestampPool> timestamps_;
  std::vector<std::string> timed_;  // the variant that ended at timestamp i + 1
};

}  // namespace kvrun
