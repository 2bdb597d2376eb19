#include "platform/vulkan/select_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

namespace kvrun {
namespace {

constexpr uint32_t kVulkan11 = (1u << 22) | (1u << 12);

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// Lower is better.
int Rank(const DeviceFacts& facts) {
  switch (facts.type) {
    case DeviceType::kDiscreteGpu: return 0;
    case DeviceType::kIntegratedGpu: return 1;
    case DeviceType::kVirtualGpu: return 2;
    case DeviceType::kOther: return 3;
    case DeviceType::kCpu: return 4;
  }
  return 3;
}

std::string ListDevices(std::span<const DeviceFacts> devices) {
  std::string list;
  for (size_t i = 0; i < devices.size(); ++i) {
    list +=
        fmt::format("{}{}: {} ({})", i == 0 ? "" : ", ", i, devices[i].name, DeviceTypeName(devices[i].type));
  }
  return list;
}

DeviceChoice Choose(std::span<const DeviceFacts> devices, size_t index) {
  DeviceChoice choice{.index = index, .note = {}};
  if (devices[index].type == DeviceType::kCpu) {
    choice.note = fmt::format("\"{}\" is a Vulkan driver that runs on the CPU", devices[index].name);
  }
  return choice;
}

DeviceChoice ChooseAutomatically(std::span<const DeviceFacts> devices) {
  size_t best = 0;
  const auto key = [&](size_t i) { return std::pair(devices[i].api_version < kVulkan11, Rank(devices[i])); };
  for (size_t i = 1; i < devices.size(); ++i) {
    if (key(i) < key(best)) best = i;
  }
  DeviceChoice choice = Choose(devices, best);
  if (!choice.note.empty()) choice.note += "; no GPU was found";
  return choice;
}

std::optional<size_t> ParseIndex(std::string_view text) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return index;
}

}  // namespace

Result<DeviceChoice> SelectDevice(std::span<const DeviceFacts> devices, std::string_view wanted) {
  if (devices.empty()) {
    return Status(StatusCode::kNotFound,
                  "no Vulkan device was found; install a driver (Debian: apt install mesa-vulkan-drivers)");
  }
  const std::string name = LowerCase(wanted);
  if (name.empty() || name == "auto" || name == "vulkan") return ChooseAutomatically(devices);
  if (const std::optional<size_t> index = ParseIndex(name); index && *index < devices.size()) {
    return Choose(devices, *index);
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    if (LowerCase(devices[i].name).find(name) != std::string::npos) return Choose(devices, i);
  }
  return Status(StatusCode::kNotFound,
                fmt::format("no device is named \"{}\"; the devices are: {}", wanted, ListDevices(devices)));
}

}  // namespace kvrun
