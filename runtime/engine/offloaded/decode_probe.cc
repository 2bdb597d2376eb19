#include "runtime/engine/offloaded/decode_probe.h"

#include <cstring>
#include <span>

#include "platform/base/check.h"
#include "runtime/device/entry_space.h"

namespace kvrun {

Result<DecodeProbe> DecodeProbe::Create(Device& device, const StepCommands& commands,
                                        std::shared_ptr<StepProbe> probe) {
  DecodeProbe of_steps(commands, std::move(probe));
  if (of_steps.probe_ != nullptr) KVRUN_RETURN_IF_ERROR(of_steps.CreateBuffers(device));
  return of_steps;
}

Status DecodeProbe::CreateBuffers(Device& device) {
  for (uint32_t i = 0; i < n_layers(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> queries,
                           device.CreateBuffer(uint64_t{commands_->qkv_dim()} * sizeof(float),
                                               BufferUse::kReadback, "activations"));
    queries_.push_back(std::move(queries));
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> input,
                           device.CreateBuffer(uint64_t{commands_->config().n_embd} * sizeof(float),
                                               BufferUse::kUpload, "activations"));
    inputs_.push_back(std::move(input));
  }
  return Status::Ok();
}

Status DecodeProbe::RecordQueries(CommandList& list, uint32_t layer) const {
  if (!is_wanted()) return Status::Ok();
  return list.GatherRows(*commands_->qkv(), *commands_->step(), 1, commands_->qkv_dim(),
                         queries_[layer].get());
}

Status DecodeProbe::RecordInput(CommandList& list, uint32_t layer) const {
  if (!gives_inputs()) return Status::Ok();
  return list.GatherRows(*inputs_[layer], *commands_->step(), 1, commands_->config().n_embd,
                         commands_->hidden());
}

void DecodeProbe::WriteInputs() {
  if (!gives_inputs()) return;
  const size_t n_embd = commands_->config().n_embd;
  KVRUN_CHECK(probe_->inputs.size() == n_layers() * n_embd);
  for (size_t i = 0; i < n_layers(); ++i) {
    std::memcpy(inputs_[i]->host().data(), &probe_->inputs[i * n_embd], n_embd * sizeof(float));
  }
}

Status DecodeProbe::Read(RecordCache& cache, uint32_t position) {
  probe_->position = position;
  probe_->queries.resize(n_layers());
  probe_->chosen.resize(n_layers());
  for (uint32_t i = 0; i < n_layers(); ++i) {
    KVRUN_RETURN_IF_ERROR(queries_[i]->Invalidate(0, queries_[i]->size_bytes()));
    const auto* query = reinterpret_cast<const float*>(queries_[i]->host().data());
    std::vector<float>& queries = probe_->queries[i];
    queries.assign(query, query + commands_->config().q_dim());
    const uint32_t head_dim = commands_->config().head_dim;
    for (size_t at = 0; cache.spaces().are_used() && at < queries.size(); at += head_dim) {
      RotateRowBack(std::span(queries).subspan(at, head_dim));
    }
    probe_->chosen[i] = cache.reports().BeforeWindow(i, 0, position);
  }
  return Status::Ok();
}

}  // namespace kvrun
