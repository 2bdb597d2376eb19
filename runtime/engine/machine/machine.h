// Which machine this is, as far as it decides how fast a KV cache on flash is: measurements and configs are
// of one machine, and say of which in these words.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "platform/io/cpu_name.h"

namespace kvrun {

// File system and disk of a folder, or of the nearest above it that is there: "ext4 on vda", "tmpfs",
// "nfs4 on server:/export"; "unknown" where the system does not say. UTF-8: what is none is
// repaired. Empty: the folder in which sessions keep their KV.
std::string StorageName(const std::string& folder);

// The same of an absolute path without links, given what /proc/self/mountinfo says. `disk_of` answers the
// disk of a block device's number ("254:1"), empty where there is none.
std::string StorageNameFrom(std::string_view mountinfo, std::string_view path,
                            const std::function<std::string(const std::string& number)>& disk_of);

}  // namespace kvrun
