#include "runtime/kv/device_selector.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/kv/host_buffer.h"

namespace kvrun {

Status DeviceSelector::BeginDecode() {
  const uint64_t bytes = plan_.n_streams * ListWords() * sizeof(uint32_t);
  for (std::unique_ptr<Buffer>& chosen : chosen_) {
    if (chosen != nullptr) continue;
    KVRUN_ASSIGN_OR_RETURN(chosen, device_.CreateBuffer(bytes, BufferUse::kShared, "kv"));
  }
  return Status::Ok();
}

void DeviceSelector::EndDecode() {
  for (std::unique_ptr<Buffer>& chosen : chosen_) chosen.reset();
}

Status DeviceSelector::Receive(uint32_t layer) {
  return chosen_[layer]->Invalidate(0, chosen_[layer]->size_bytes());
}

std::span<const uint32_t> DeviceSelector::List(const StreamStep& step) const {
  return Words(*chosen_[step.layer]).subspan(Offset(step), ListWords());
}

Result<std::span<const uint32_t>> DeviceSelector::Choose(const StreamStep& step) {
  const std::span<const uint32_t> list = List(step);
  const uint32_t count = std::min(list[0], plan_.n_chosen);
  if (count != list[0] || (count > 0 && list[count] >= step.n_groups)) {
    return Status(StatusCode::kDevice,
                  fmt::format("layer {}: the device chose {} groups up to number {}, and there are {}; run "
                              "kvrun doctor",
                              step.layer, list[0], count > 0 ? list[count] : 0, step.n_groups));
  }
  return list.subspan(1, count);
}

Result<GroupSample> DeviceSelector::Sample(const StreamStep& step) {
  if (plan_.n_sampled == 0) return GroupSample();
  const ChoiceList shape = plan_.choice_list();
  const std::span<const uint32_t> list = List(step);
  const std::span<const uint32_t> sampled = list.subspan(shape.sampled_begin());
  const uint32_t count = std::min(sampled[0], shape.most_sampled());
  if (count != sampled[0] || (count > 0 && sampled[count] >= step.n_groups)) {
    return Status(StatusCode::kDevice,
                  fmt::format("layer {}: the device drew {} groups up to number {}, and there are {}; run "
                              "kvrun doctor",
                              step.layer, sampled[0], count > 0 ? sampled[count] : 0, step.n_groups));
  }
  const std::span<const uint32_t> biases = list.subspan(shape.biases_begin(), count);
  return GroupSample{sampled.subspan(1, count), {reinterpret_cast<const float*>(biases.data()), count}};
}

std::span<const uint32_t> DeviceSelector::LastChoice(const StreamStep& step) const {
  const std::span<const uint32_t> list = List(step);
  return list.subspan(1, list[0]);
}

}  // namespace kvrun
