// What all programs say alike.
#pragma once

#include <cstdint>
#include <string>

#include "apps/common/api.h"

namespace kvrun::cli {

// "22.5 KiB", "93.8 MiB".
std::string FormatBytes(uint64_t bytes);

// What the engine has to say about its device, such as that it is the CPU where another one was asked for:
// one message per line. `in_detail`: also which device was chosen, and why, where that is as at an earlier
// start.
void PrintNotes(const Json& engine_info, const std::string& asked_device, bool in_detail);

}  // namespace kvrun::cli
