#include "apps/kvrun/session_files.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/printable.h"
#include "apps/common/report.h"

namespace kvrun::cli {

uint64_t ParseBytes(const std::string& source, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit(end);
  for (const char* ending : {"iB", "B"}) {
    if (unit.ends_with(ending)) unit.resize(unit.size() - std::strlen(ending));
  }
  constexpr std::string_view kUnits = "KMGT";
  const size_t found = unit.empty() ? 0 : kUnits.find(static_cast<char>(std::toupper(unit.front())));
  const auto power = static_cast<int>(unit.empty() ? 0 : found + 1);
  const bool is_number = end != text.c_str() && number >= 0.0 && std::isfinite(number);
  if (!is_number || unit.size() > 1 || found == kUnits.npos || std::ldexp(number, 10 * power) > 0x1p62) {
    throw UsageError(fmt::format("{}: \"{}\" is no number of bytes such as 500M or 20G", source, text));
  }
  return static_cast<uint64_t>(std::ldexp(number, 10 * power));
}

Json AllSessions() {
  char* text = nullptr;
  Check(kvrun_sessions_json(nullptr, &text));
  return TakeJson(text);
}

void PruneSessions(const Json& sessions, uint64_t most_bytes, bool quiet) {
  uint64_t bytes = 0;
  for (const Json& session : sessions) {
    const auto own_bytes = session.value("bytes", uint64_t{0});
    bytes += own_bytes;
    if (bytes <= most_bytes) continue;
    const std::string name = Printable(TextOf(session.value("name", Json(""))));
    if (kvrun_sessions_remove(session.value("path", std::string()).c_str()) != KVRUN_OK) {
      if (!quiet) PrintMessage(fmt::format("note: {} stays: {}", name, kvrun_last_error()));
      continue;
    }
    bytes -= own_bytes;
    if (!quiet) PrintMessage("removed the session " + name);
  }
}

}  // namespace kvrun::cli
