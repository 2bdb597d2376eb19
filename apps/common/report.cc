#include "apps/common/report.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "apps/common/files.h"

namespace kvrun::cli {

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

void PrintNotes(const Json& engine_info, const std::string& asked_device, bool in_detail) {
  bool cpu_mentioned = false;
  for (const char* kind : {"notes", "details"}) {
    if (kind == std::string_view("details") && !in_detail) continue;
    for (const Json& note : engine_info.value(kind, Json::array())) {
      const std::string text = TextOf(note);
      cpu_mentioned = cpu_mentioned || text.find("CPU") != std::string::npos;
      PrintMessage("note: " + text);
    }
  }
  const bool chosen_for_them = asked_device == "vulkan" || (asked_device == "auto" && in_detail);
  if (chosen_for_them && !cpu_mentioned && engine_info.value("is_cpu", Json(false)) == true) {
    PrintMessage(fmt::format("note: no GPU was found; computing on the CPU with {}",
                             TextOf(engine_info.value("device", Json("its Vulkan driver")))));
  }
}

}  // namespace kvrun::cli
