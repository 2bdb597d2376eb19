// Matrix products of the CPU device with each instruction set that this machine has, and how exact they must
// be.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/host/operations.h"
#include "tests/support/or_die.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::host::matmul_cases {

inline constexpr double kRoundoff = 0x1p-24;

inline constexpr TensorType kTypes[] = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,   TensorType::kQ4_0,
    TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ2_K,   TensorType::kQ3_K,
    TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS};

bool IsQuantised(TensorType type);
std::vector<uint32_t> ColumnCounts(TensorType type);

// One of the kernels that this machine can run.
struct Target {
  int64_t bit;
  Int8Products products;
  Int8Products most;  // nothing better is used
};

// Afterwards MatMul's kernels are those. targets 0: the best.
void Choose(int64_t targets, Int8Products most);
std::vector<Target> Targets();
std::string NameOf(const Target& target);

struct Case {
  TensorType type = TensorType::kF32;
  uint32_t n_rows = 0;
  uint32_t n_cols = 0;
  uint32_t n_tokens = 0;
  uint32_t variation = 0;  // bits: bias, accumulate, stride and offsets
  bool exact = false;
  bool whole_activations = false;  // multiples of their step: rounding takes nothing away
  bool large_blocks = false;       // every fifth block is not, and 20 times as large as the others
};

std::vector<float> Input(const Case& c);

struct Weights {
  std::vector<std::byte> data;
  testing::ReferenceMatrix reference;
  std::unique_ptr<Matrix> matrix;
};

Weights MakeWeights(std::shared_ptr<MemoryAccount> account, ThreadPool& pool, TensorType type,
                    uint32_t n_cols, std::vector<std::byte> data, std::span<const uint32_t> source_rows);

// MatMul's kernels are those of one target.
class HostMatMulTest : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override;
  void TearDown() override { Choose(0, Int8Products::kTiles); }

  std::unique_ptr<Buffer> NewBuffer(uint64_t size_bytes) {
    auto memory = testing::OrDie(HostMemory::Allocate(account_, "test", size_bytes));
    return std::make_unique<HostBuffer>(std::move(memory), size_bytes, BufferUse::kShared);
  }
  std::unique_ptr<Buffer> Floats(std::span<const float> values) {
    auto buffer = NewBuffer(values.size_bytes());
    std::memcpy(Data<float>(buffer.get()), values.data(), values.size_bytes());
    return buffer;
  }

  // A product and what must stay around it. `used`: the rows that it is with.
  void CheckProduct(ThreadPool& pool, const Case& c, const Matrix& matrix,
                    const testing::ReferenceMatrix& used);

  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  ThreadPool one_{1};
  ThreadPool three_{3};
};

}  // namespace kvrun::host::matmul_cases
