#include "runtime/engine/forward/create_forward_pass.h"

#include <utility>

#include "runtime/engine/forward/resuming_pass.h"
#include "runtime/engine/offloaded/offloaded_pass.h"
#include "runtime/engine/resident/resident_pass.h"

namespace kvrun {
Result<std::unique_ptr<ForwardPass>> CreateForwardPass(const Model& model,
                                                       std::shared_ptr<const DeviceWeights> weights,
                                                       Device& device, const ForwardPassOptions& options) {
  std::unique_ptr<ForwardPass> pass;
  uint32_t n_copies = options.n_state_copies;
  if (options.offloaded != nullptr) {
    n_copies = options.offloaded->plan.states.n_copies;
    KVRUN_ASSIGN_OR_RETURN(
        pass, CreateOffloadedPass(model, std::move(weights), device, std::move(*options.offloaded)));
  } else {
    KVRUN_ASSIGN_OR_RETURN(pass, ResidentForwardPass::Create(model, std::move(weights), device, options));
  }
  if (model.config.is_uniform()) return pass;
  return std::unique_ptr<ForwardPass>(
      std::make_unique<ResumingPass>(std::move(pass), options.n_sequences, options.n_ctx, n_copies));
}

}  // namespace kvrun
