#include "runtime/engine/offloaded/prompt_rows.h"

#include <fmt/format.h>

#include <cstring>

namespace kvrun {

Status PromptRows::Run(std::span<const StepRow> rows, std::span<const uint32_t> outputs,
                       const StepProgress& progress, const ComputeRow& compute_row) {
  first_kept_ = outputs.empty() ? static_cast<uint32_t>(rows.size()) : outputs[0];
  Buffer& hidden = *commands_.hidden();
  for (uint32_t i = 0; i < rows.size(); ++i) {
    if (progress && progress(i, rows.size())) {
      return {StatusCode::kCancelled,
              fmt::format("cancelled after {} of {} tokens of the prompt", i, rows.size())};
    }
    KVRUN_RETURN_IF_ERROR(compute_row(rows.subspan(i, 1)));
    if (i < first_kept_) continue;
    KVRUN_RETURN_IF_ERROR(hidden.Invalidate(0, n_embd() * sizeof(float)));
    const auto* row = reinterpret_cast<const float*>(hidden.host().data());
    kept_.insert(kept_.end(), row, row + n_embd());
  }
  return Status::Ok();
}

Status PromptRows::Load(std::span<const uint32_t> outputs) const {
  Buffer& hidden = *commands_.hidden();
  const uint64_t row_bytes = n_embd() * sizeof(float);
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::memcpy(hidden.host().data() + i * row_bytes, kept_.data() + (outputs[i] - first_kept_) * n_embd(),
                row_bytes);
  }
  return hidden.Flush(0, outputs.size() * row_bytes);
}

}  // namespace kvrun
