#include "runtime/engine/offloaded/compute_step.h"

namespace kvrun {
namespace {

// Of the lists that carry out layers, where the host is waited for.
uint32_t CountLayers(const StepLists& lists, const StepForm& form) {
  return static_cast<uint32_t>(lists.size()) - 1 - form.lookahead;
}

// last: of the lists that were submitted, whatever fails then.
Result<uint64_t> Submit(Device& device, const StepLists& lists, const StepForm& form,
                        std::span<StepRecords* const> caches, KvThread* thread, uint64_t* last) {
  uint64_t first_ready = 0;
  if (thread != nullptr) {
    first_ready = device.ReserveHostValues(CountLayers(lists, form));
    thread->Begin(first_ready, caches);
  } else {
    for (StepRecords* records : caches) {
      KVRUN_RETURN_IF_ERROR(records->WriteCompletedGroups());
      for (uint32_t i = 0; i < CountLayers(lists, form); ++i) KVRUN_RETURN_IF_ERROR(records->FetchLayer(i));
    }
  }
  for (uint32_t i = 0; i < lists.size(); ++i) {
    const uint64_t wait = thread != nullptr && i > form.lookahead ? first_ready + i - 1 - form.lookahead : 0;
    Result<uint64_t> submitted = device.Submit(*lists[i], wait);
    if (!submitted.ok()) {
      if (thread != nullptr) thread->Abandon();
      return submitted;
    }
    *last = *submitted;
    if (thread != nullptr) thread->Post(i, *last);
  }
  return *last;
}

}  // namespace

Status ComputeStep(Device& device, const StepLists& lists, const StepForm& form,
                   std::span<StepRecords* const> caches, KvThread* thread) {
  uint64_t last = 0;
  const Result<uint64_t> value = Submit(device, lists, form, caches, thread, &last);
  // One after the other: where two threads wait for a timeline, Debian 12's validation layer loses track of
  // it.
  const Status served = thread != nullptr ? thread->End() : Status::Ok();
  const Status waited = last > 0 ? device.Wait(last) : Status::Ok();  // nothing is in use any more
  KVRUN_RETURN_IF_ERROR(served);
  KVRUN_RETURN_IF_ERROR(value.status());
  return waited;
}

}  // namespace kvrun
