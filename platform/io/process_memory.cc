#include "platform/io/process_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>

namespace kvrun {
namespace {

// Of a line "VmRSS:     123 kB".
std::optional<uint64_t> BytesOfLine(std::string_view status, std::string_view name) {
  const size_t line = status.find(name);
  if (line == std::string_view::npos) return std::nullopt;
  std::string_view value = status.substr(line + name.size());
  value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
  uint64_t kib = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), kib);
  if (error != std::errc()) return std::nullopt;
  return kib * 1024;
}

}  // namespace

std::optional<ProcessMemory> ReadProcessMemory() {
  const std::ifstream file("/proc/self/status");
  std::ostringstream text;
  text << file.rdbuf();
  return ProcessMemoryFrom(text.str());
}

std::optional<ProcessMemory> ProcessMemoryFrom(std::string_view status) {
  const std::optional<uint64_t> resident = BytesOfLine(status, "\nVmRSS:");
  const std::optional<uint64_t> peak = BytesOfLine(status, "\nVmHWM:");
  if (!resident || !peak) return std::nullopt;
  return ProcessMemory{*resident, *peak};
}

}  // namespace kvrun
