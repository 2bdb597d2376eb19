#include "runtime/device/operation.h"

#include <span>
#include <type_traits>

namespace kvrun {
namespace {

template <typename... F>
struct Overloads : F... {
  using F::operator()...;
};
template <typename... F>
Overloads(F...) -> Overloads<F...>;

// The operands of each operation's arguments.
class OperandsOf {
 public:
  explicit OperandsOf(OperandVisitor& visitor) : to_(visitor) {}

  void operator()(EmbedArgs& a) { Matrices(a.table), Reads(a.step), Writes(a.out); }
  void operator()(RmsNormArgs& a) { Reads(a.x, a.weight), Writes(a.out); }
  void operator()(MatMulArgs& a) {
    Matrices(a.weight), Reads(a.input, a.bias, a.norm.weight);
    Writes(a.output, a.norm.rows, a.gate.gate_up);
  }
  void operator()(GatedUnitArgs& a) { Reads(a.gate_up), Writes(a.out); }
  void operator()(SigmoidGateArgs& a) { Reads(a.gate), Writes(a.values); }
  void operator()(GatherRowsArgs& a) { Reads(a.x, a.step), Writes(a.out); }
  void operator()(CopyArgs& a) { Reads(a.from), Writes(a.to); }
  void operator()(ChooseExpertsArgs& a) { Reads(a.logits), Writes(a.ids, a.weights); }
  void operator()(ExpertMatMulArgs& a) {
    Matrices(a.weight), Reads(a.input, a.ids, a.weights), Writes(a.output);
  }
  void operator()(ShortConvolutionArgs& a) { Reads(a.input, a.taps, a.step), Writes(a.state, a.output); }
  void operator()(DeltaRuleArgs& a) { Reads(a.qkv, a.gates, a.constants, a.step), Writes(a.state, a.output); }
  void operator()(GatedNormArgs& a) { Reads(a.weight, a.gate), Writes(a.values); }
  void operator()(RopeAndStoreOp& a) { Attention(a.args); }
  void operator()(AttendOp& a) { Attention(a.args); }
  void operator()(AttendNewOp& a) { Attention(a.args); }
  void operator()(FinishAttentionOp& a) { Attention(a.args); }
  void operator()(RopeAndEncodeOp& a) { Slots(a.args); }
  void operator()(AttendSlotsOp& a) { Slots(a.args); }
  void operator()(AttendNewSlotsOp& a) { Slots(a.args); }
  void operator()(EncodeRecordsArgs& a) { Reads(a.kv, a.space.constants), Writes(a.records); }
  void operator()(DecodeRecordsArgs& a) { Reads(a.records, a.space.constants), Writes(a.kv); }
  void operator()(ScoreArgs& a) {
    Attention(a.attention), Sides(a.sides);
    Reads(a.index), Writes(a.query, a.scratch, a.chosen);
    if (auto* by_weight = std::get_if<ChooseByWeight>(&a.rule)) Reads(by_weight->weights);
  }
  void operator()(ProjectKeysArgs& a) { Reads(a.kv), Sides(a.sides), Writes(a.out); }
  void operator()(GramArgs& a) { Reads(a.rows), Writes(a.sums); }
  void operator()(SumWeightsOp& a) { Mass(a.args); }
  void operator()(AttentionMassOp& a) { Mass(a.args); }
  void operator()(RateArgs& a) { Writes(a.values); }

 private:
  template <typename... B>
  void Reads(B&... buffers) {
    (to_.Reads(buffers), ...);
  }
  template <typename... B>
  void Writes(B&... buffers) {
    (to_.Writes(buffers), ...);
  }
  void Matrices(const Matrix*& matrix) { to_.Multiplies(matrix); }

  void Attention(AttentionArgs& a) {
    Reads(a.step, a.angles, a.norms);
    Writes(a.qkv, a.kv, a.output, a.scratch, a.parts_after.buffer);
    const Buffer* before = a.parts_before.buffer;  // read alone
    Reads(before);
    a.parts_before.buffer = const_cast<Buffer*>(before);
  }
  void Slots(SlotAttentionArgs& a) {
    Attention(a.attention);
    Reads(a.space.constants);
    for (SlotSource& source : std::span(a.sources).first(a.n_sources)) {
      Reads(source.table), Writes(source.slots, source.mass);
    }
  }
  void Sides(IndexSides& a) { Reads(a.query_side, a.key_side, a.bias, a.scales); }
  void Mass(RowMassArgs& a) { Reads(a.queries, a.step, a.kv), Writes(a.sums, a.mass); }

  OperandVisitor& to_;
};

}  // namespace

std::string_view NameOf(const Operation& operation) {
  return std::visit(
      Overloads{
          [](const EmbedArgs&) { return "embed"; },
          [](const RmsNormArgs&) { return "rms_norm"; },
          [](const MatMulArgs& a) { return a.n_tokens == 1 ? "matvec" : "matmul"; },
          [](const GatedUnitArgs& a) { return a.activation == Activation::kSilu ? "swiglu" : "geglu"; },
          [](const SigmoidGateArgs&) { return "sigmoid_gate"; },
          [](const GatherRowsArgs&) { return "gather_rows"; },
          [](const CopyArgs&) { return "copy"; },
          [](const ChooseExpertsArgs&) { return "choose_experts"; },
          [](const ExpertMatMulArgs&) { return "expert_matmul"; },
          [](const ShortConvolutionArgs&) { return "short_convolution"; },
          [](const DeltaRuleArgs&) { return "delta_rule"; },
          [](const GatedNormArgs&) { return "gated_norm"; },
          [](const RopeAndStoreOp&) { return "rope_and_store"; },
          [](const AttendOp& a) { return a.args.window_tokens == 0 ? "attend" : "attend_window"; },
          [](const AttendNewOp&) { return "attend_new"; },
          [](const FinishAttentionOp&) { return "finish_attention"; },
          [](const RopeAndEncodeOp&) { return "rope_and_encode"; },
          [](const AttendSlotsOp&) { return "attend_slots"; },
          [](const AttendNewSlotsOp&) { return "attend_new_slots"; },
          [](const EncodeRecordsArgs&) { return "encode_records"; },
          [](const DecodeRecordsArgs&) { return "decode_records"; },
          [](const ScoreArgs&) { return "score_and_select"; },
          [](const ProjectKeysArgs&) { return "project_keys"; },
          [](const GramArgs&) { return "accumulate_gram"; },
          [](const SumWeightsOp&) { return "sum_weights"; },
          [](const AttentionMassOp&) { return "attention_mass"; },
          [](const RateArgs& a) { return a.kind == RateArgs::Kind::kArithmetic ? "alu_rate" : "read_rate"; }},
      operation);
}

OperationWork WorkIn(const Operation& operation) {
  return std::visit(Overloads{[](const RopeAndStoreOp& a) {
                                return OperationWork{WorkOf::kRows, a.args.n_tokens};
                              },
                              [](const AttendOp& a) {
                                return OperationWork{WorkOf::kRows, a.args.n_tokens};
                              },
                              [](const AttendNewOp& a) {
                                return OperationWork{WorkOf::kRows, a.args.n_tokens};
                              },
                              [](const FinishAttentionOp& a) {
                                return OperationWork{WorkOf::kRows, a.args.n_tokens};
                              },
                              [](const RopeAndEncodeOp& a) {
                                return OperationWork{WorkOf::kRows, a.args.attention.n_tokens};
                              },
                              [](const AttendSlotsOp& a) {
                                return OperationWork{WorkOf::kRows, a.args.attention.n_tokens};
                              },
                              [](const AttendNewSlotsOp& a) {
                                return OperationWork{WorkOf::kRows, a.args.attention.n_tokens};
                              },
                              [](const EncodeRecordsArgs& a) {
                                return OperationWork{WorkOf::kRows, a.n_groups * a.record.group_tokens};
                              },
                              [](const DecodeRecordsArgs& a) {
                                return OperationWork{WorkOf::kRows, a.n_groups * a.record.group_tokens};
                              },
                              [](const ScoreArgs& a) {
                                return OperationWork{WorkOf::kRows, a.attention.n_tokens};
                              },
                              // A prompt's, however few they are.
                              [](const SumWeightsOp&) { return OperationWork{WorkOf::kPrompts}; },
                              [](const AttentionMassOp&) { return OperationWork{WorkOf::kPrompts}; },
                              // Whichever has begun the list; states are moved between steps.
                              [](const CopyArgs&) { return OperationWork{WorkOf::kDecoding}; },
                              // Prompts are bound by arithmetic, decoding by reading.
                              [](const RateArgs& a) {
                                return OperationWork{a.kind == RateArgs::Kind::kArithmetic
                                                         ? WorkOf::kPrompts
                                                         : WorkOf::kDecoding};
                              },
                              [](const auto& a) {
                                if constexpr (requires { a.n_tokens; }) {
                                  return OperationWork{WorkOf::kRows, a.n_tokens};
                                } else {
                                  return OperationWork{WorkOf::kRows, a.n_rows};
                                }
                              }},
                    operation);
}

void VisitOperands(Operation& operation, OperandVisitor& visitor) {
  std::visit(OperandsOf(visitor), operation);
}

}  // namespace kvrun
