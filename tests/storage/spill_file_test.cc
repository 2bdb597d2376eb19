// How what a prefill puts aside goes to a file. (That it comes back as it was, or not at all:
// store_faults_test.cc.)
#include "runtime/store/spill_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "platform/io/faulty_block_file.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

constexpr uint64_t kSpace = 2 * SpillFile::kBufferBytes;

// What goes through the buffer of twice its size, where the file's alignment is no more than a request.
constexpr uint64_t kCopiedRequests = 2 * SpillFile::kBufferBytes / SpillFile::kRequestBytes;

// Where direct I/O takes memory as it is.
struct AlignedBytes {
  static constexpr std::align_val_t kAlignment{64 * 1024};

  explicit AlignedBytes(uint64_t size)
      : bytes(static_cast<std::byte*>(::operator new(size, kAlignment)), size) {}
  ~AlignedBytes() { ::operator delete(bytes.data(), kAlignment); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  std::span<std::byte> bytes;
};

class SpillFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<SpillFile> Make(const FaultPlan& plan, FaultyBlockFile** faulty) const {
    auto file = std::make_unique<FaultyBlockFile>(
        OrDie(CreateBlockFile({.folder = folder_.Path("kv"), .allow_tmpfs = true})), plan);
    *faulty = file.get();
    return OrDie(SpillFile::Create(std::move(file), 2 * kSpace));
  }

  TemporaryFolder folder_;
  AlignedBytes memory_{kSpace};
};

// Whole blocks of memory that is aligned go in one request each; the rest through the buffer.
TEST_F(SpillFileTest, WhatDirectIoTakesGoesInOneRequest) {
  FaultyBlockFile* faulty = nullptr;
  const auto spill = Make({}, &faulty);
  if (!faulty->mode().direct) GTEST_SKIP() << "no direct I/O here";
  const std::span<std::byte> whole = memory_.bytes.first(2 * SpillFile::kBufferBytes);
  FillPattern(whole, 0, 1);
  ASSERT_TRUE(spill->Write(0, whole).ok());
  ASSERT_TRUE(spill->Read(0, whole).ok());
  EXPECT_EQ(faulty->counters().writes, 1U);
  EXPECT_EQ(faulty->counters().reads, 1U);
  EXPECT_TRUE(HoldsPattern(whole, 0, 1));
  const std::span<std::byte> odd = memory_.bytes.subspan(1, whole.size() - 1);
  FillPattern(odd, 0, 2);
  ASSERT_TRUE(spill->Write(0, odd).ok());
  ASSERT_TRUE(spill->Read(0, odd).ok());
  EXPECT_EQ(faulty->counters().writes, 1 + kCopiedRequests);
  EXPECT_EQ(faulty->counters().reads, 1 + kCopiedRequests);
  EXPECT_TRUE(HoldsPattern(odd, 0, 2));
}

// As a device's mapped memory may: once is enough to know.
TEST_F(SpillFileTest, MemoryThatIsRefusedGoesThroughTheBuffer) {
  FaultyBlockFile* faulty = nullptr;
  const auto spill = Make({.faults = {}, .refused_memory = memory_.bytes, .random_kinds = {}}, &faulty);
  const std::span<std::byte> whole = memory_.bytes.first(2 * SpillFile::kBufferBytes);
  for (const uint64_t version : {1, 2}) {
    FillPattern(whole, 0, version);
    ASSERT_TRUE(spill->Write(0, whole).ok());
    std::fill(whole.begin(), whole.end(), std::byte{});
    const Status status = spill->Read(0, whole);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(HoldsPattern(whole, 0, version));
  }
  EXPECT_EQ(faulty->counters().reads, 1 + 2 * kCopiedRequests);
}

TEST_F(SpillFileTest, WhatWasNotWrittenIsNotRead) {
  FaultyBlockFile* faulty = nullptr;
  const auto spill = Make({}, &faulty);
  std::vector<std::byte> bytes(100);
  const Status status = spill->Read(kSpace, bytes);
  EXPECT_EQ(status.code(), StatusCode::kInternal) << status.message();
  ASSERT_TRUE(spill->Write(kSpace, bytes).ok());
  EXPECT_TRUE(spill->Read(kSpace, bytes).ok());
}

}  // namespace
}  // namespace kvrun::testing
