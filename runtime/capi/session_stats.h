// What kvrun_session_stats_json says. Memory and operations are of the engine, over all of its sessions.
#pragma once

#include <span>

#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"

namespace kvrun::capi {

// The object "memory".
Json MemoryInfo(std::span<const Device::MemoryPart> parts);

// The same, with that of the process.
Json MemoryOf(const Device& device);

// Tokens and times, of which the statistics of a session begin.
Json SpeedInfo(const SessionStats& stats);

Json SessionStatsInfo(const kvrun_session& session);

}  // namespace kvrun::capi
