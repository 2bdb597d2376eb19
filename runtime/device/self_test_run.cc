#include "runtime/device/self_test_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/device/encode_rows.h"

namespace kvrun {

template <typename T>
T* SelfTestRun::Keep(Result<std::unique_ptr<T>> made, std::vector<std::unique_ptr<T>>& kept) {
  if (!made.ok()) {
    if (status_.ok()) status_ = made.status();
    return nullptr;
  }
  kept.push_back(std::move(made).value());
  return kept.back().get();
}

Buffer* SelfTestRun::Floats(std::span<const float> values) {
  return Keep(device_.CreateConstants(std::as_bytes(values), "self-test"), buffers_);
}

Buffer* SelfTestRun::Halves(std::span<const float> values) {
  const std::vector<uint16_t> halves = ToFiniteHalves(values);
  return Keep(device_.CreateConstants(std::as_bytes(std::span(halves)), "self-test"), buffers_);
}

Buffer* SelfTestRun::Poisoned(size_t count) {
  return Floats(std::vector<float>(count, std::numeric_limits<float>::quiet_NaN()));
}

Buffer* SelfTestRun::Zeros(uint64_t size_bytes) {
  return Keep(device_.CreateBuffer(size_bytes, BufferUse::kDevice, "self-test"), buffers_);
}

Buffer* SelfTestRun::Step(std::span<const StepToken> tokens, uint32_t most_chosen) {
  Buffer* buffer = Keep(device_.CreateBuffer(sizeof(StepParams), BufferUse::kUpload, "self-test"), buffers_);
  if (buffer == nullptr) return nullptr;
  auto* step = reinterpret_cast<StepParams*>(buffer->host().data());
  step->n_tokens = step->n_outputs = static_cast<uint32_t>(tokens.size());
  step->most_chosen = most_chosen;
  std::copy(tokens.begin(), tokens.end(), step->tokens);
  return buffer;
}

const Matrix* SelfTestRun::Weights(TensorType type, uint32_t n_rows, uint32_t n_cols,
                                   std::span<const std::byte> data) {
  const MatrixSource source{.data = data, .n_rows = n_rows};
  return Keep(device_.CreateMatrix(type, n_cols, {&source, 1}), matrices_);
}

void SelfTestRun::Run(const std::function<Status(CommandList&)>& record) {
  if (!status_.ok()) return;
  status_ = [&]() -> Status {
    KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<CommandList> list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(record(*list));
    KVRUN_RETURN_IF_ERROR(list->Finish());
    return device_.Execute(*list);
  }();
}

std::vector<std::byte> SelfTestRun::Bytes(const Buffer* buffer, size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  if (status_.ok()) status_ = device_.Download(*buffer, bytes);
  return bytes;
}

Result<std::string> SelfTestRun::Compare(std::span<const double> expected, const Buffer* found,
                                         double tolerance) {
  KVRUN_RETURN_IF_ERROR(status_);
  std::vector<float> floats(expected.size());
  const std::vector<std::byte> bytes = Bytes(found, floats.size() * sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return Compare(expected, floats, tolerance);
}

Result<std::string> SelfTestRun::Compare(std::span<const double> expected, std::span<const float> found,
                                         double tolerance) {
  KVRUN_RETURN_IF_ERROR(status_);
  double largest = 0.0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  double worst = 0.0;
  size_t worst_at = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(expected[i] - static_cast<double>(found[i]));
    if (error <= worst) continue;  // false for NaN
    worst = error;
    worst_at = i;
    if (std::isnan(error)) break;
  }
  if (worst <= tolerance * largest)
    return fmt::format("error {:.1e} of at most {:.0e}", worst / largest, tolerance);
  return Status(StatusCode::kDevice,
                fmt::format("value {} of {} is {} and not {}; the driver or the kernel is wrong", worst_at,
                            expected.size(), found[worst_at], static_cast<float>(expected[worst_at])));
}

}  // namespace kvrun
