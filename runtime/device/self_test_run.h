// What self-tests of operations share, on any device: buffers with known content, one submission, and the
// comparison.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "shaders/shared/step_params.h"

namespace kvrun {

class SelfTestRun {
 public:
  explicit SelfTestRun(Device& device) : device_(device) {}

  // Buffers live as long as the run; null after an error, which Compare reports.
  Buffer* Floats(std::span<const float> values);
  Buffer* Halves(std::span<const float> values);  // that f16 holds
  Buffer* Poisoned(size_t count);                 // NaNs: what a kernel leaves out shows
  Buffer* Step(std::span<const StepToken> tokens, uint32_t most_chosen = 0);
  const Matrix* Weights(TensorType type, uint32_t n_rows, uint32_t n_cols, std::span<const std::byte> data);
  Buffer* Zeros(uint64_t size_bytes);

  // Records by `record`, submits and waits.
  void Run(const std::function<Status(CommandList&)>& record);
  std::vector<std::byte> Bytes(const Buffer* buffer, size_t size_bytes);

  // All of `found` within `tolerance` times the largest expected magnitude.
  Result<std::string> Compare(std::span<const double> expected, std::span<const float> found,
                              double tolerance);
  Result<std::string> Compare(std::span<const double> expected, const Buffer* found, double tolerance);

  Device& device() { return device_; }
  const Status& status() const { return status_; }

 private:
  template <typename T>
  T* Keep(Result<std::unique_ptr<T>> made, std::vector<std::unique_ptr<T>>& kept);

  Device& device_;
  Status status_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<Matrix>> matrices_;
};

}  // namespace kvrun
