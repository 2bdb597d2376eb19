#include "runtime/device/host/host_command_list.h"

#include "platform/base/check.h"
#include "runtime/device/host/operations.h"

namespace kvrun::host {

Status HostCommandList::Embed(const Matrix& table, const Buffer& step, uint32_t n_tokens, Buffer* out) {
  return Record("embed", out, [&table, &step, n_tokens, out](ThreadPool& pool) {
    host::Embed(pool, table, step, n_tokens, out);
  });
}

Status HostCommandList::RmsNorm(const Buffer& x, const Buffer& weight, float epsilon, uint32_t n_rows,
                                uint32_t n_cols, Buffer* out) {
  return Record("rms_norm", out, [&x, &weight, epsilon, n_rows, n_cols, out](ThreadPool& pool) {
    host::RmsNorm(pool, x, weight, epsilon, n_rows, n_cols, out);
  });
}

Status HostCommandList::MatMul(const MatMulArgs& args) {
  KVRUN_CHECK(args.n_rows <= args.weight->n_rows());
  return Record(
      args.n_tokens == 1 ? "matvec" : "matmul", args.output,
      [args, exact = device_.exact_activations()](ThreadPool& pool) { host::MatMul(pool, args, exact); });
}

Status HostCommandList::RopeAndStore(const AttentionArgs& args) {
  return Record("rope_and_store", args.qkv, [args](ThreadPool& pool) { host::RopeAndStore(pool, args); });
}

Status HostCommandList::Attend(const AttentionArgs& args) {
  return Record(
      "attend", args.goes_on() ? args.parts_after.buffer : args.output,
      [args, exact = device_.exact_activations()](ThreadPool& pool) { host::Attend(pool, args, exact); });
}

Status HostCommandList::FinishAttention(const AttentionArgs& args) {
  return Record("finish_attention", args.output,
                [args](ThreadPool& pool) { host::FinishAttention(pool, args); });
}

Status HostCommandList::SwiGlu(const Buffer& gate_up, uint32_t n_tokens, uint32_t n_ff, Buffer* out) {
  return Record("swiglu", out, [&gate_up, n_tokens, n_ff, out](ThreadPool& pool) {
    host::SwiGlu(pool, gate_up, n_tokens, n_ff, out);
  });
}

Status HostCommandList::GatherRows(const Buffer& x, const Buffer& step, uint32_t n_rows, uint32_t n_cols,
                                   Buffer* out) {
  return Record("gather_rows", out, [&x, &step, n_rows, n_cols, out](ThreadPool& pool) {
    host::GatherRows(pool, x, step, n_rows, n_cols, out);
  });
}

Status HostCommandList::RopeAndEncode(const SlotAttentionArgs& args) {
  return Record("rope_and_encode", args.window().slots,
                [args](ThreadPool& pool) { host::RopeAndEncode(pool, args); });
}

Status HostCommandList::AttendSlots(const SlotAttentionArgs& args) {
  return Record("attend_slots", args.attention.output,
                [args, exact = device_.exact_activations()](ThreadPool& pool) {
                  host::AttendSlots(pool, args, exact);
                });
}

Status HostCommandList::EncodeRecords(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                                      uint32_t n_groups, const KvRecordShape& record, const EntrySpace& space,
                                      Buffer* records) {
  return Record("encode_records", records, [=, &kv](ThreadPool& pool) {
    host::EncodeRecords(pool, kv, kv_shape, first_token, n_groups, record, space, records);
  });
}

Status HostCommandList::DecodeRecords(const Buffer& records, const KvRecordShape& record,
                                      const EntrySpace& space, uint32_t n_groups, uint32_t first_token,
                                      const KvShape& kv_shape, Buffer* kv) {
  return Record("decode_records", kv, [=, &records](ThreadPool& pool) {
    host::DecodeRecords(pool, records, record, space, n_groups, first_token, kv_shape, kv);
  });
}

Status HostCommandList::ScoreAndSelect(const ScoreArgs& args) {
  KVRUN_CHECK(args.n_pinned <= args.n_chosen);
  return Record("score_and_select", args.chosen,
                [args, exact = device_.exact_activations()](ThreadPool& pool) {
                  host::ScoreAndSelect(pool, args, exact);
                });
}

Status HostCommandList::ProjectKeys(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                                    uint32_t n_tokens, const IndexSides& sides, uint32_t rank, Buffer* out) {
  return Record("project_keys", out, [=, &kv](ThreadPool& pool) {
    host::ProjectKeys(pool, kv, kv_shape, first_token, n_tokens, sides, rank, out);
  });
}

Status HostCommandList::AccumulateGram(const GramArgs& args) {
  return Record("accumulate_gram", args.sums, [args](ThreadPool& pool) { host::AccumulateGram(pool, args); });
}

Status HostCommandList::SumWeights(const RowMassArgs& args) {
  return Record("sum_weights", args.sums, [args](ThreadPool& pool) { host::SumWeights(pool, args); });
}

Status HostCommandList::AttentionMass(const RowMassArgs& args) {
  return Record("attention_mass", args.mass, [args](ThreadPool& pool) { host::AttentionMass(pool, args); });
}

Status HostCommandList::AluRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) {
  return Record("alu_rate", values,
                [=](ThreadPool& pool) { host::AluRate(pool, n_groups, n_steps, values); });
}

Status HostCommandList::ReadRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) {
  return Record("read_rate", values,
                [=](ThreadPool& pool) { host::ReadRate(pool, n_groups, n_steps, values); });
}

}  // namespace kvrun::host
