// Until each has its file: what is here is replaced by whatever defines it.
#include "platform/base/check.h"
#include "runtime/device/host/operations.h"

#define KVRUN_MISSING __attribute__((weak))

namespace kvrun::host {

KVRUN_MISSING void RmsNorm(ThreadPool&, const Buffer&, const Buffer&, float, uint32_t, uint32_t, Buffer*) {
  KVRUN_CHECK(false);
}
KVRUN_MISSING void SwiGlu(ThreadPool&, const Buffer&, uint32_t, uint32_t, Buffer*) { KVRUN_CHECK(false); }
KVRUN_MISSING void GatherRows(ThreadPool&, const Buffer&, const Buffer&, uint32_t, uint32_t, Buffer*) {
  KVRUN_CHECK(false);
}
KVRUN_MISSING Result<std::unique_ptr<Matrix>> PackMatrix(std::shared_ptr<MemoryAccount>, ThreadPool&,
                                                         TensorType, uint32_t,
                                                         std::span<const MatrixSource>) {
  return Status(StatusCode::kUnsupported, "missing");
}
KVRUN_MISSING void MatMul(ThreadPool&, const MatMulArgs&, bool) { KVRUN_CHECK(false); }
KVRUN_MISSING void Embed(ThreadPool&, const Matrix&, const Buffer&, uint32_t, Buffer*) { KVRUN_CHECK(false); }
KVRUN_MISSING void RopeAndStore(ThreadPool&, const AttentionArgs&) { KVRUN_CHECK(false); }
KVRUN_MISSING uint64_t AttendScratchBytes(const ThreadPool&, const AttentionArgs&) { return 16; }
KVRUN_MISSING void Attend(ThreadPool&, const AttentionArgs&) { KVRUN_CHECK(false); }
KVRUN_MISSING void FinishAttention(ThreadPool&, const AttentionArgs&) { KVRUN_CHECK(false); }
KVRUN_MISSING void RopeAndEncode(ThreadPool&, const SlotAttentionArgs&) { KVRUN_CHECK(false); }
KVRUN_MISSING uint64_t AttendSlotsScratchBytes(const ThreadPool&, const SlotAttentionArgs&) { return 16; }
KVRUN_MISSING void AttendSlots(ThreadPool&, const SlotAttentionArgs&) { KVRUN_CHECK(false); }
KVRUN_MISSING void EncodeRecords(ThreadPool&, const Buffer&, const KvShape&, uint32_t, uint32_t,
                                 const KvRecordShape&, Buffer*) {
  KVRUN_CHECK(false);
}
KVRUN_MISSING void DecodeRecords(ThreadPool&, const Buffer&, const KvRecordShape&, uint32_t, uint32_t,
                                 const KvShape&, Buffer*) {
  KVRUN_CHECK(false);
}
KVRUN_MISSING uint64_t ScoreScratchBytes(const ThreadPool&, const ScoreArgs&) { return 16; }
KVRUN_MISSING void ScoreAndSelect(ThreadPool&, const ScoreArgs&) { KVRUN_CHECK(false); }
KVRUN_MISSING void AppendIndex(ThreadPool&, const Buffer&, uint32_t, uint32_t, uint32_t, const Buffer&,
                               uint32_t, const IndexSides&, const IndexShape&, Buffer*) {
  KVRUN_CHECK(false);
}
KVRUN_MISSING void ProjectKeys(ThreadPool&, const Buffer&, const KvShape&, uint32_t, uint32_t,
                               const IndexSides&, uint32_t, Buffer*) {
  KVRUN_CHECK(false);
}
KVRUN_MISSING void AccumulateGram(ThreadPool&, const GramArgs&) { KVRUN_CHECK(false); }
KVRUN_MISSING void AluRate(ThreadPool&, uint32_t, uint32_t, Buffer*) { KVRUN_CHECK(false); }
KVRUN_MISSING void ReadRate(ThreadPool&, uint32_t, uint32_t, Buffer*) { KVRUN_CHECK(false); }

}  // namespace kvrun::host
