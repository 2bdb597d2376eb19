#include "runtime/engine/offloaded/compute_step.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>

namespace kvrun {
namespace {

// Of the lists that carry out layers, where the host is waited for.
uint32_t CountLayers(const StepLists& lists, const StepForm& form) {
  return static_cast<uint32_t>(lists.size()) - 1 - form.lookahead;
}

// last: of the lists that were submitted, whatever fails then.
Status Submit(Device& device, const StepLists& lists, const StepForm& form,
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
  // A step allocates nothing: so many at a time, which is all of them in most models.
  std::array<Device::Submission, 64> submissions;
  Status status = Status::Ok();
  for (size_t begin = 0; begin < lists.size() && status.ok(); begin += submissions.size()) {
    const size_t n = std::min(submissions.size(), lists.size() - begin);
    for (size_t i = 0; i < n; ++i) {
      const size_t nth = begin + i;
      const bool waits = thread != nullptr && nth > form.lookahead;
      submissions[i] = {lists[nth].get(), waits ? first_ready + nth - 1 - form.lookahead : 0};
    }
    const auto submitted = [&](size_t i, uint64_t value) {
      *last = value;
      if (thread != nullptr) thread->Post(static_cast<uint32_t>(begin + i), value);
    };
    status = device.SubmitAll(std::span(submissions).first(n), std::ref(submitted));
  }
  if (!status.ok() && thread != nullptr) thread->Abandon();
  return status;
}

}  // namespace

Status ComputeStep(Device& device, const StepLists& lists, const StepForm& form,
                   std::span<StepRecords* const> caches, KvThread* thread) {
  uint64_t last = 0;
  const Status submitted = Submit(device, lists, form, caches, thread, &last);
  // One after the other: where two threads wait for a timeline, Debian 12's validation layer loses track of
  // it.
  const Status served = thread != nullptr ? thread->End() : Status::Ok();
  const Status waited = last > 0 ? device.Wait(last) : Status::Ok();  // nothing is in use any more
  KVRUN_RETURN_IF_ERROR(served);
  KVRUN_RETURN_IF_ERROR(submitted);
  return waited;
}

}  // namespace kvrun
