#include "runtime/kv/select/device_selector.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {
namespace {

// words: how many groups follow, and they, ascending. A number or a group that no device can mean is kDevice.
Result<std::span<const uint32_t>> CheckedGroups(std::span<const uint32_t> words, uint32_t most,
                                                std::string_view did, const StreamStep& step) {
  const uint32_t count = std::min(words[0], most);
  if (count == words[0] && (count == 0 || words[count] < step.n_groups)) return words.subspan(1, count);
  return Status(StatusCode::kDevice,
                fmt::format("layer {}: the device {} {} groups up to number {}, and there are {}; run kvrun "
                            "doctor",
                            step.layer, did, words[0], count > 0 ? words[count] : 0, step.n_groups));
}

}  // namespace

Status DeviceSelector::BeginDecode() {
  for (uint32_t layer = 0; layer < chosen_.size(); ++layer) {
    if (chosen_[layer] != nullptr) continue;
    const uint64_t bytes = plan_.n_streams * ListWords(layer) * sizeof(uint32_t);
    KVRUN_ASSIGN_OR_RETURN(chosen_[layer], device_.CreateBuffer(bytes, BufferUse::kShared, "kv"));
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
  return Words(*chosen_[step.layer]).subspan(Offset(step), ListWords(step.layer));
}

Result<std::span<const uint32_t>> DeviceSelector::Choose(const StreamStep& step) {
  return CheckedGroups(List(step), plan_.layers[step.layer].n_chosen, "chose", step);
}

Result<GroupSample> DeviceSelector::Sample(const StreamStep& step) {
  if (plan_.choice.n_sampled == 0) return GroupSample();
  const ChoiceList shape = plan_.choice_list(step.layer);
  const std::span<const uint32_t> list = List(step);
  KVRUN_ASSIGN_OR_RETURN(
      const std::span<const uint32_t> groups,
      CheckedGroups(list.subspan(shape.sampled_begin()), shape.most_sampled(), "drew", step));
  const auto* const biases = reinterpret_cast<const float*>(list.data() + shape.biases_begin());
  return GroupSample{groups, {biases, groups.size()}};
}

std::span<const float> DeviceSelector::Scores(const StreamStep& step) const {
  const ChoiceList shape = plan_.choice_list(step.layer);
  if (!shape.tells_scores) return {};
  const std::span<const uint32_t> list = List(step);
  return {reinterpret_cast<const float*>(list.data() + shape.scores_begin()), list[0]};
}

std::span<const uint32_t> DeviceSelector::LastChoice(const StreamStep& step) const {
  const std::span<const uint32_t> list = List(step);
  return list.subspan(1, list[0]);
}

}  // namespace kvrun
