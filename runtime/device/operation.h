// The operations of a device, as data: each is a struct of arguments that knows its name, how many rows of a
// step it works on, and the buffers and matrices that it names. To add one is to add a struct here, and what
// each device does for it (host/host_command_list.cc, vulkan/add_operation.cc).
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "runtime/device/attention_args.h"
#include "runtime/device/index_args.h"
#include "runtime/device/layer_args.h"

namespace kvrun {

// The same arguments serve several operations.
struct RopeAndStoreOp {
  AttentionArgs args;
};
struct AttendOp {
  AttentionArgs args;
};
struct AttendNewOp {
  AttentionArgs args;
};
struct FinishAttentionOp {
  AttentionArgs args;
};
struct RopeAndEncodeOp {
  SlotAttentionArgs args;
};
struct AttendSlotsOp {
  SlotAttentionArgs args;
};
struct AttendNewSlotsOp {
  SlotAttentionArgs args;
};
struct SumWeightsOp {
  RowMassArgs args;
};
struct AttentionMassOp {
  RowMassArgs args;
};

// What each does is said at CommandList's function of the same name.
using Operation =
    std::variant<EmbedArgs, RmsNormArgs, MatMulArgs, GatedUnitArgs, SigmoidGateArgs, GatherRowsArgs, CopyArgs,
                 ChooseExpertsArgs, ExpertMatMulArgs, ShortConvolutionArgs, DeltaRuleArgs, GatedNormArgs,
                 RopeAndStoreOp, AttendOp, AttendNewOp, FinishAttentionOp, RopeAndEncodeOp, AttendSlotsOp,
                 AttendNewSlotsOp, EncodeRecordsArgs, DecodeRecordsArgs, ScoreArgs, ProjectKeysArgs, GramArgs,
                 SumWeightsOp, AttentionMassOp, RateArgs>;

// "matmul", "attend_slots": for profiles and messages.
std::string_view NameOf(const Operation& operation);

// Which of two devices a pair gives an operation to: that which computes prompts, or decodes; most go by
// their rows.
enum class WorkOf : uint8_t { kRows, kPrompts, kDecoding };
struct OperationWork {
  WorkOf of = WorkOf::kRows;
  uint32_t n_rows = 0;
};
OperationWork WorkIn(const Operation& operation);

// What an operation names. Each is told once for each place that names it; null is told too, and may be
// replaced.
class OperandVisitor {
 public:
  virtual ~OperandVisitor() = default;
  virtual void Reads(const Buffer*& buffer) = 0;
  virtual void Writes(Buffer*& buffer) = 0;  // and may read
  virtual void Multiplies(const Matrix*& matrix) = 0;
};
void VisitOperands(Operation& operation, OperandVisitor& visitor);

}  // namespace kvrun
