#include "runtime/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/kv/kv_method.h"

namespace kvrun {
namespace {

// Which forward pass carries a method out. Today every row of the table is of the one kind.
Status CheckMethodIsWired(const KvMethod& method) {
  if (method.index == KvIndexKind::kNone && method.selector == KvSelectorKind::kAll &&
      method.store == KvStoreKind::kResident && method.policy == KvPolicyKind::kNone &&
      method.precision == KvPrecisionKind::kUniform) {
    return Status::Ok();
  }
  return Status(StatusCode::kInternal,
                fmt::format("no forward pass carries out the KV method {}", method.name));
}

uint32_t ChooseContext(uint32_t asked, const ModelConfig& config) {
  if (asked != 0) return asked;
  return config.n_ctx_train == 0 ? kDefaultMaxContext : std::min(config.n_ctx_train, kDefaultMaxContext);
}

std::vector<std::string> ContextNotes(uint32_t n_ctx, const ModelConfig& config) {
  if (config.n_ctx_train == 0 || n_ctx <= config.n_ctx_train) return {};
  return {
      fmt::format("the context of {} tokens exceeds the {} that the model was trained with: expect worse "
                  "text beyond them",
                  n_ctx, config.n_ctx_train)};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(const Model& model, const EngineOptions& options) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(options.device));
  ProgressCallback progress = options.progress;
  if (!progress) progress = [](uint64_t, uint64_t) { return false; };
  KVRUN_ASSIGN_OR_RETURN(std::shared_ptr<const DeviceWeights> weights,
                         LoadDeviceWeights(model, *device, progress));
  Device* device_pointer = device.get();
  auto create_forward_pass = [&model, device_pointer,
                              weights = std::move(weights)](const ForwardPassOptions& pass_options) {
    return CreateForwardPass(model, weights, *device_pointer, pass_options);
  };
  return std::make_unique<Engine>(model, std::move(device), std::move(create_forward_pass));
}

Engine::Engine(const Model& model, std::unique_ptr<Device> device, ForwardPassFactory create_forward_pass)
    : model_(model), device_(std::move(device)), create_forward_pass_(std::move(create_forward_pass)) {}

Result<std::unique_ptr<Session>> Engine::CreateSession(const SessionOptions& options) {
  if (options.n_sequences == 0 || options.n_sequences > kMaxSequences) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a session of {} sequences was asked for; it can have 1 to {}",
                              options.n_sequences, kMaxSequences));
  }
  KVRUN_ASSIGN_OR_RETURN(const KvMethod method, FindKvMethod(options.kv_method));
  KVRUN_RETURN_IF_ERROR(CheckMethodIsWired(method));
  Session::Parts parts;
  parts.n_sequences = options.n_sequences;
  parts.n_ctx = ChooseContext(options.n_ctx, model_.config);
  parts.notes = ContextNotes(parts.n_ctx, model_.config);
  parts.tokenizer = model_.tokenizer.get();
  parts.device_mutex = &device_mutex_;
  parts.progress = options.progress;
  {
    const std::lock_guard lock(device_mutex_);
    KVRUN_ASSIGN_OR_RETURN(parts.forward_pass,
                           create_forward_pass_({options.n_sequences, parts.n_ctx, options.kv_type}));
  }
  return Session::Create(std::move(parts));
}

std::vector<OperationTime> Engine::OperationTotals() {
  const std::lock_guard lock(totals_mutex_);
  for (OperationTime& time : device_->TakeOperationTimes()) {
    const auto same_name = [&time](const OperationTime& total) { return total.name == time.name; };
    const auto total = std::find_if(operation_totals_.begin(), operation_totals_.end(), same_name);
    if (total == operation_totals_.end()) {
      operation_totals_.push_back(std::move(time));
    } else {
      total->count += time.count;
      total->milliseconds += time.milliseconds;
    }
  }
  return operation_totals_;
}

}  // namespace kvrun
