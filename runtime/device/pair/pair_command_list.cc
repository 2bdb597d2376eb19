#include "runtime/device/pair/pair_command_list.h"

#include "runtime/device/pair/pair_device.h"

namespace kvrun::pair {

Status PairCommandList::BeginOn(Side side) {
  if (own_ != nullptr) return Status::Ok();
  side_ = side;
  KVRUN_ASSIGN_OR_RETURN(own_, device_.On(side).CreateCommandList());
  return Status::Ok();
}

Side PairCommandList::SideOf(const OperationWork& work) const {
  if (work.of == WorkOf::kRows) {
    return work.n_rows <= device_.max_decode_rows() ? Side::kDecode : Side::kPrefill;
  }
  return work.of == WorkOf::kPrompts ? Side::kPrefill : Side::kDecode;
}

Status PairCommandList::Add(const Operation& operation) {
  KVRUN_RETURN_IF_ERROR(BeginOn(SideOf(WorkIn(operation))));
  Operation own = operation;
  Translator translate(side_, &written_);
  VisitOperands(own, translate);
  return own_->Add(own);
}

Status PairCommandList::AwaitHost() { return own_ != nullptr ? own_->AwaitHost() : Status::Ok(); }

Status PairCommandList::Finish() {
  KVRUN_RETURN_IF_ERROR(BeginOn(Side::kDecode));  // of a list without operations
  return own_->Finish();
}

}  // namespace kvrun::pair
