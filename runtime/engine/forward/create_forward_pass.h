// Which kind of forward pass a session gets: all KV in memory as it is, or in records.
#pragma once

#include <memory>

#include "platform/base/status.h"
#include "runtime/engine/pass/forward_pass.h"

namespace kvrun {

Result<std::unique_ptr<ForwardPass>> CreateForwardPass(const Model& model,
                                                       std::shared_ptr<const DeviceWeights> weights,
                                                       Device& device, const ForwardPassOptions& options);

}  // namespace kvrun
