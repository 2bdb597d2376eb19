// How a config names the adapter that was tuned with. Pure but for looking at the file system.
#pragma once

#include <string>

#include "platform/base/status.h"

namespace kvrun::offline {

// Relative to the config's folder where the adapter lies below it, so that both can be moved. Configs are
// UTF-8: kInvalidArgument where the name is not.
Result<std::string> AdapterName(const std::string& adapter_path, const std::string& config_path);

}  // namespace kvrun::offline
