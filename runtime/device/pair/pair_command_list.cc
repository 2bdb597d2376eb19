#include "runtime/device/pair/pair_command_list.h"

#include "runtime/device/pair/pair_device.h"

namespace kvrun::pair {

Status PairCommandList::BeginOn(Side side) {
  if (own_ != nullptr) return Status::Ok();
  side_ = side;
  own_args_ = Translator(side, &written_);
  KVRUN_ASSIGN_OR_RETURN(own_, device_.On(side).CreateCommandList());
  return Status::Ok();
}

Status PairCommandList::Begin(uint32_t rows) {
  return BeginOn(rows <= device_.max_decode_rows() ? Side::kDecode : Side::kPrefill);
}

Status PairCommandList::Embed(const Matrix& table, const Buffer& step, uint32_t n_tokens, Buffer* out) {
  KVRUN_RETURN_IF_ERROR(Begin(n_tokens));
  return own_->Embed(own_args_(table), own_args_(step), n_tokens, own_args_(out));
}

Status PairCommandList::RmsNorm(const Buffer& x, const Buffer& weight, float epsilon, uint32_t n_rows,
                                uint32_t n_cols, Buffer* out) {
  KVRUN_RETURN_IF_ERROR(Begin(n_rows));
  return own_->RmsNorm(own_args_(x), own_args_(weight), epsilon, n_rows, n_cols, own_args_(out));
}

Status PairCommandList::RmsNorms(const Buffer& x, const NormTarget& first, const NormTarget& second,
                                 float epsilon, uint32_t n_rows, uint32_t n_cols) {
  KVRUN_RETURN_IF_ERROR(Begin(n_rows));
  const auto own = [&](const NormTarget& target) -> NormTarget {
    return {own_args_(target.weight), own_args_(target.out)};
  };
  return own_->RmsNorms(own_args_(x), own(first), own(second), epsilon, n_rows, n_cols);
}

Status PairCommandList::MatMul(const MatMulArgs& args) {
  KVRUN_RETURN_IF_ERROR(Begin(args.n_tokens));
  return own_->MatMul(own_args_(args));
}

Status PairCommandList::RopeAndStore(const AttentionArgs& args) {
  KVRUN_RETURN_IF_ERROR(Begin(args.n_tokens));
  return own_->RopeAndStore(own_args_(args));
}

Status PairCommandList::Attend(const AttentionArgs& args) {
  KVRUN_RETURN_IF_ERROR(Begin(args.n_tokens));
  return own_->Attend(own_args_(args));
}

Status PairCommandList::FinishAttention(const AttentionArgs& args) {
  KVRUN_RETURN_IF_ERROR(Begin(args.n_tokens));
  return own_->FinishAttention(own_args_(args));
}

Status PairCommandList::SwiGlu(const Buffer& gate_up, uint32_t n_tokens, uint32_t n_ff, Buffer* out) {
  KVRUN_RETURN_IF_ERROR(Begin(n_tokens));
  return own_->SwiGlu(own_args_(gate_up), n_tokens, n_ff, own_args_(out));
}

Status PairCommandList::GatherRows(const Buffer& x, const Buffer& step, uint32_t n_rows, uint32_t n_cols,
                                   Buffer* out) {
  KVRUN_RETURN_IF_ERROR(Begin(n_rows));
  return own_->GatherRows(own_args_(x), own_args_(step), n_rows, n_cols, own_args_(out));
}

Status PairCommandList::RopeAndEncode(const SlotAttentionArgs& args) {
  KVRUN_RETURN_IF_ERROR(Begin(args.attention.n_tokens));
  return own_->RopeAndEncode(own_args_(args));
}

Status PairCommandList::AttendSlots(const SlotAttentionArgs& args) {
  KVRUN_RETURN_IF_ERROR(Begin(args.attention.n_tokens));
  return own_->AttendSlots(own_args_(args));
}

Status PairCommandList::EncodeRecords(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                                      uint32_t n_groups, const KvRecordShape& record, const EntrySpace& space,
                                      Buffer* records) {
  KVRUN_RETURN_IF_ERROR(Begin(n_groups * record.group_tokens));
  return own_->EncodeRecords(own_args_(kv), kv_shape, first_token, n_groups, record, own_args_(space),
                             own_args_(records));
}

Status PairCommandList::DecodeRecords(const Buffer& records, const KvRecordShape& record,
                                      const EntrySpace& space, uint32_t n_groups, uint32_t first_token,
                                      const KvShape& kv_shape, Buffer* kv) {
  KVRUN_RETURN_IF_ERROR(Begin(n_groups * record.group_tokens));
  return own_->DecodeRecords(own_args_(records), record, own_args_(space), n_groups, first_token, kv_shape,
                             own_args_(kv));
}

Status PairCommandList::ScoreAndSelect(const ScoreArgs& args) {
  KVRUN_RETURN_IF_ERROR(Begin(args.attention.n_tokens));
  return own_->ScoreAndSelect(own_args_(args));
}

Status PairCommandList::ProjectKeys(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                                    uint32_t n_tokens, const IndexSides& sides, uint32_t rank, Buffer* out) {
  KVRUN_RETURN_IF_ERROR(Begin(n_tokens));
  return own_->ProjectKeys(own_args_(kv), kv_shape, first_token, n_tokens, own_args_(sides), rank,
                           own_args_(out));
}

Status PairCommandList::AccumulateGram(const GramArgs& args) {
  KVRUN_RETURN_IF_ERROR(Begin(args.n_rows));
  return own_->AccumulateGram(own_args_(args));
}

// A prompt's, however few they are.
Status PairCommandList::SumWeights(const RowMassArgs& args) {
  KVRUN_RETURN_IF_ERROR(BeginOn(Side::kPrefill));
  return own_->SumWeights(own_args_(args));
}

Status PairCommandList::AttentionMass(const RowMassArgs& args) {
  KVRUN_RETURN_IF_ERROR(BeginOn(Side::kPrefill));
  return own_->AttentionMass(own_args_(args));
}

// Prompts are bound by arithmetic, decoding by reading.
Status PairCommandList::AluRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) {
  KVRUN_RETURN_IF_ERROR(BeginOn(Side::kPrefill));
  return own_->AluRate(n_groups, n_steps, own_args_(values));
}

Status PairCommandList::ReadRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) {
  KVRUN_RETURN_IF_ERROR(BeginOn(Side::kDecode));
  return own_->ReadRate(n_groups, n_steps, own_args_(values));
}

Status PairCommandList::AwaitHost() { return own_ != nullptr ? own_->AwaitHost() : Status::Ok(); }

Status PairCommandList::Finish() {
  KVRUN_RETURN_IF_ERROR(BeginOn(Side::kDecode));  // of a list without operations
  return own_->Finish();
}

}  // namespace kvrun::pair
