#include "runtime/capi/session_stats.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "platform/io/process_memory.h"
#include "runtime/capi/kv_info.h"

namespace kvrun::capi {
namespace {

double PerSecond(uint64_t count, double milliseconds) {
  return milliseconds > 0.0 ? static_cast<double>(count) * 1e3 / milliseconds : 0.0;
}

Json OperationsInfo(const std::vector<OperationTime>& totals, const std::vector<OperationTime>& before) {
  Json operations = Json::array();
  for (OperationTime time : totals) {
    const auto earlier = std::find_if(before.begin(), before.end(), [&time](const OperationTime& other) {
      return other.name == time.name;
    });
    if (earlier != before.end()) {
      time.count -= earlier->count;
      time.milliseconds -= earlier->milliseconds;
    }
    if (time.count == 0) continue;
    operations.push_back({{"name", time.name}, {"count", time.count}, {"ms", time.milliseconds}});
  }
  return operations;
}

}  // namespace

Json SpeedInfo(const SessionStats& stats) {
  return {{"prefill_tokens", stats.prefill_tokens},
          {"prefill_ms", stats.prefill_ms},
          {"prefill_tps", PerSecond(stats.prefill_tokens, stats.prefill_ms)},
          {"answer_tokens", stats.answer_tokens},
          {"decode_tokens", stats.decode_tokens},
          {"decode_ms", stats.decode_ms},
          {"decode_tps", PerSecond(stats.decode_tokens, stats.decode_ms)},
          {"ttft_ms", stats.ttft_ms},
          {"cached_tokens", stats.cached_tokens},
          {"recomputed_tokens", stats.recomputed_tokens}};
}

// The parts that kvrun.h names are always there; others follow as the device names them.
Json MemoryInfo(std::span<const Device::MemoryPart> parts) {
  Json memory = {
      {"weights", uint64_t{0}}, {"kv", uint64_t{0}}, {"activations", uint64_t{0}}, {"staging", uint64_t{0}}};
  uint64_t total = 0;
  for (const Device::MemoryPart& part : parts) {
    memory[part.part] = memory.value(part.part, uint64_t{0}) + part.bytes;
    total += part.bytes;
  }
  memory["total"] = total;
  return memory;
}

Json MemoryOf(const Device& device) {
  Json memory = MemoryInfo(device.MemoryInUse());
  const std::optional<ProcessMemory> process = ReadProcessMemory();
  memory["process"] = process ? Json(process->resident_bytes) : Json();
  memory["process_peak"] = process ? Json(process->peak_bytes) : Json();
  // A CPU's device memory is the process's.
  const uint64_t process_bytes = process ? process->resident_bytes : 0;
  const uint64_t device_bytes = memory["total"].get<uint64_t>();
  const bool is_shared = device.info().is_cpu;
  memory["all"] = is_shared ? std::max(process_bytes, device_bytes) : process_bytes + device_bytes;
  return memory;
}

Json SessionStatsInfo(const kvrun_session& session) {
  const SessionStats stats = session.session->stats();
  Json info = SpeedInfo(stats);
  info["last"] = SpeedInfo(session.session->turn_stats());
  info["memory"] = MemoryOf(session.engine->device());
  info["operations"] = OperationsInfo(session.engine->OperationTotals(), session.operations_before);
  info["written_bytes"] = session.session->written_bytes();
  info["notes"] = session.session->notes();
  info["details"] = session.session->details();
  if (const std::optional<KvReport> report = session.session->kv_report()) {
    info["kv"] = KvReportInfo(*report, stats.decode_tokens, session.profile);
  }
  return info;
}

}  // namespace kvrun::capi
