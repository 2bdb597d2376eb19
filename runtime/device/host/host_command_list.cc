#include "runtime/device/host/host_command_list.h"

#include <array>
#include <utility>
#include <variant>

#include "platform/base/check.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/matmul_parts.h"

namespace kvrun::host {
namespace {

struct Call {
  Buffer* result;
  std::function<void(ThreadPool&)> run;
};

// What each operation is on the CPU. exact: activations are not rounded.
class CallOf {
 public:
  explicit CallOf(bool exact) : exact_(exact) {}

  Call operator()(const EmbedArgs& a) const {
    return {a.out, [a](ThreadPool& pool) { Embed(pool, a); }};
  }
  Call operator()(const RmsNormArgs& a) const {
    return {a.out, [a](ThreadPool& pool) { RmsNorm(pool, a); }};
  }
  Call operator()(const MatMulArgs& a) const {
    KVRUN_CHECK(a.n_rows <= a.weight->n_rows());
    return {a.output, [a, exact = exact_](ThreadPool& pool) { MatMul(pool, a, exact); }};
  }
  Call operator()(const GatedUnitArgs& a) const {
    return {a.out, [a](ThreadPool& pool) { GatedUnit(pool, a); }};
  }
  Call operator()(const SigmoidGateArgs& a) const {
    return {a.values, [a](ThreadPool& pool) { SigmoidGate(pool, a); }};
  }
  Call operator()(const GatherRowsArgs& a) const {
    return {a.out, [a](ThreadPool& pool) { GatherRows(pool, a); }};
  }
  Call operator()(const CopyArgs& a) const {
    return {a.to, [a](ThreadPool& pool) { Copy(pool, a); }};
  }
  Call operator()(const ChooseExpertsArgs& a) const {
    return {a.ids, [a](ThreadPool& pool) { ChooseExperts(pool, a); }};
  }
  Call operator()(const ExpertMatMulArgs& a) const {
    return {a.output, [a, exact = exact_](ThreadPool& pool) { ExpertMatMul(pool, a, exact); }};
  }
  Call operator()(const ShortConvolutionArgs& a) const {
    return {a.output, [a](ThreadPool& pool) { ShortConvolution(pool, a); }};
  }
  Call operator()(const DeltaRuleArgs& a) const {
    return {a.output, [a](ThreadPool& pool) { DeltaRule(pool, a); }};
  }
  Call operator()(const GatedNormArgs& a) const {
    return {a.values, [a](ThreadPool& pool) { GatedNorm(pool, a); }};
  }
  Call operator()(const RopeAndStoreOp& a) const {
    return {a.args.qkv, [args = a.args](ThreadPool& pool) { RopeAndStore(pool, args); }};
  }
  Call operator()(const AttendOp& a) const {
    return {a.args.goes_on() ? a.args.parts_after.buffer : a.args.output,
            [args = a.args, exact = exact_](ThreadPool& pool) { Attend(pool, args, exact); }};
  }
  // Added as the two that they are.
  Call operator()(const AttendNewOp&) const { return {}; }
  Call operator()(const AttendNewSlotsOp&) const { return {}; }
  Call operator()(const FinishAttentionOp& a) const {
    return {a.args.output, [args = a.args](ThreadPool& pool) { FinishAttention(pool, args); }};
  }
  Call operator()(const RopeAndEncodeOp& a) const {
    return {a.args.window().slots, [args = a.args](ThreadPool& pool) { RopeAndEncode(pool, args); }};
  }
  Call operator()(const AttendSlotsOp& a) const {
    return {a.args.attention.output,
            [args = a.args, exact = exact_](ThreadPool& pool) { AttendSlots(pool, args, exact); }};
  }
  Call operator()(const EncodeRecordsArgs& a) const {
    return {a.records, [a](ThreadPool& pool) { EncodeRecords(pool, a); }};
  }
  Call operator()(const DecodeRecordsArgs& a) const {
    return {a.kv, [a](ThreadPool& pool) { DecodeRecords(pool, a); }};
  }
  Call operator()(const ScoreArgs& a) const {
    KVRUN_CHECK(a.n_pinned <= a.n_chosen);
    return {a.chosen, [a, exact = exact_](ThreadPool& pool) { ScoreAndSelect(pool, a, exact); }};
  }
  Call operator()(const ProjectKeysArgs& a) const {
    return {a.out, [a](ThreadPool& pool) { ProjectKeys(pool, a); }};
  }
  Call operator()(const GramArgs& a) const {
    return {a.sums, [a](ThreadPool& pool) { AccumulateGram(pool, a); }};
  }
  Call operator()(const SumWeightsOp& a) const {
    return {a.args.sums, [args = a.args](ThreadPool& pool) { SumWeights(pool, args); }};
  }
  Call operator()(const AttentionMassOp& a) const {
    return {a.args.mass, [args = a.args](ThreadPool& pool) { AttentionMass(pool, args); }};
  }
  Call operator()(const RateArgs& a) const {
    return {a.values, [a](ThreadPool& pool) { Rate(pool, a); }};
  }

 private:
  bool exact_;
};

}  // namespace

Status HostCommandList::AddAll(std::span<const Operation> operations) {
  for (const Operation& operation : operations) KVRUN_RETURN_IF_ERROR(Add(operation));
  return Status::Ok();
}

Status HostCommandList::Add(const Operation& operation) {
  if (const auto* product = std::get_if<MatMulArgs>(&operation); product != nullptr && !IsWhole(*product, {}))
    return AddAll(PartsOf(*product, {}));
  if (const auto* attention = std::get_if<AttendNewOp>(&operation)) {
    return AddAll(std::array<Operation, 2>{RopeAndStoreOp{attention->args}, AttendOp{attention->args}});
  }
  if (const auto* attention = std::get_if<AttendNewSlotsOp>(&operation)) {
    return AddAll(std::array<Operation, 2>{RopeAndEncodeOp{attention->args}, AttendSlotsOp{attention->args}});
  }
  Call call = std::visit(CallOf(device_.exact_activations()), operation);
  operations_.push_back({NameOf(operation), call.result, std::move(call.run)});
  return Status::Ok();
}

void HostCommandList::BeginStrand() {
  if (!open_.empty()) open_.back().end = operations_.size();
  open_.push_back({operations_.size(), 0});
}

void HostCommandList::EndStrands() {
  if (open_.empty()) return;
  open_.back().end = operations_.size();
  strands_.push_back(std::exchange(open_, {}));
}

}  // namespace kvrun::host
