// Lists of an index's rows: what is read is what was written last. (store_faults_test.cc has the faults that
// all stores have to bear.)
#include "runtime/store/row_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/random.h"
#include "platform/io/faulty_block_file.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/cluster_fixture.h"
#include "tests/storage/newest_first_file.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kLayers = 4;
constexpr uint32_t kLists = 3;
constexpr uint64_t kListBytes = 5000;  // no multiple of any alignment

// A store, and what its lists should hold: the number of a pattern; 0: not written.
class CheckedRows {
 public:
  explicit CheckedRows(std::unique_ptr<BlockFile> file)
      : store_(OrDie(RowStore::Create(std::move(file), {kLayers, kLists, kListBytes}))),
        versions_(kLayers * kLists),
        lengths_(kLayers * kLists),
        bytes_(kListBytes) {}

  RowStore& store() { return *store_; }
  bool IsWritten(uint32_t layer, uint32_t list) const { return versions_[layer * kLists + list] != 0; }

  // As long as the number of its write says.
  Status Write(uint32_t layer, uint32_t list) { return Write(layer, list, 1 + version_ * 1237 % kListBytes); }
  Status Write(uint32_t layer, uint32_t list, uint64_t length) {
    versions_[layer * kLists + list] = ++version_;
    lengths_[layer * kLists + list] = length;
    FillPattern(bytes_, Place(layer, list), version_);
    return store_->Write(layer, list, std::span(bytes_).first(length));
  }
  void Forget(uint32_t layer, uint32_t list) {
    versions_[layer * kLists + list] = 0;
    store_->Forget(layer, list);
  }
  // A list whose read has begun. Wrong bytes are a failure of the test, errors are not.
  Status Copy(uint32_t layer, uint32_t list, const std::string& name) {
    constexpr std::byte kUntouched{0x5a};
    std::fill(bytes_.begin(), bytes_.end(), kUntouched);
    KVRUN_ASSIGN_OR_RETURN(const uint64_t length, store_->Copy(layer, list, bytes_));
    EXPECT_EQ(length, lengths_[layer * kLists + list]) << name;
    const std::span<const std::byte> read = std::span(bytes_).first(length);
    EXPECT_TRUE(HoldsPattern(read, Place(layer, list), versions_[layer * kLists + list]))
        << name << ": layer " << layer << ", list " << list;
    EXPECT_TRUE(std::all_of(bytes_.begin() + static_cast<ptrdiff_t>(length), bytes_.end(),
                            [](std::byte byte) { return byte == kUntouched; }))
        << name;
    return Status::Ok();
  }
  // All of these lists that are written; answers the first error.
  Status Read(uint32_t layer, uint32_t first, uint32_t n, const std::string& name) {
    Status status = Status::Ok();
    KVRUN_RETURN_IF_ERROR(store_->Begin(layer, first, n));
    for (uint32_t list = first; list < first + n; ++list) {
      EXPECT_EQ(store_->IsWritten(layer, list), IsWritten(layer, list));
      EXPECT_TRUE(store_->HasBegun(layer, list));
      if (!IsWritten(layer, list)) continue;
      const Status copied = Copy(layer, list, name);
      if (status.ok()) status = copied;
    }
    const Status ended = store_->End();
    EXPECT_FALSE(store_->HasBegun(layer, first));
    return status.ok() ? ended : status;
  }
  Status ReadLayer(uint32_t layer, const std::string& name) { return Read(layer, 0, kLists, name); }

 private:
  static uint64_t Place(uint32_t layer, uint32_t list) { return (layer * kLists + list) * uint64_t{1 << 20}; }

  std::unique_ptr<RowStore> store_;
  std::vector<uint64_t> versions_;
  std::vector<uint64_t> lengths_;
  uint64_t version_ = 0;
  std::vector<std::byte> bytes_;
};

class RowStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<BlockFile> NewFile(uint32_t alignment_bytes = 0, uint32_t queue_depth = 32) const {
    return AlignedFile(OrDie(CreateBlockFile(
                           {.folder = folder_.Path("kv"), .queue_depth = queue_depth, .allow_tmpfs = true})),
                       alignment_bytes);
  }
  std::unique_ptr<BlockFile> NewFaulty(const FaultPlan& plan, FaultyBlockFile** faulty) const {
    auto file = std::make_unique<FaultyBlockFile>(NewFile(), plan);
    *faulty = file.get();
    return file;
  }

  // Every list twice, so that there is something old; then, as a step does, each layer begun ahead of its
  // use, and some lists written in between.
  static Status Scenario(CheckedRows& rows, const std::string& name) {
    for (uint32_t i = 0; i < 2 * kLayers * kLists; ++i) {
      KVRUN_RETURN_IF_ERROR(rows.Write(i / kLists % kLayers, i % kLists));
    }
    rows.Forget(2, 1);
    Status status = Status::Ok();
    const auto note = [&status](Status now) {
      if (status.ok()) status = std::move(now);
    };
    for (uint32_t round = 0; round < 2; ++round) {
      note(rows.store().Begin(0, 0, kLists));
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t list = 0; list < kLists; ++list) {
          if (rows.IsWritten(layer, list)) note(rows.Copy(layer, list, name));
        }
        note(rows.store().End());
        if (layer + 1 < kLayers) note(rows.store().Begin(layer + 1, 0, kLists));
        note(rows.Write(layer, (layer + round) % kLists));
      }
      note(rows.Read(1, round, 2, name));
    }
    return status;
  }

  TemporaryFolder folder_;
};

TEST_F(RowStoreTest, WhatIsReadIsWhatWasWrittenLast) {
  for (const uint32_t alignment : {0U, 4096U}) {  // 0: the file's
    for (const uint32_t queue_depth : {1U, 2U, 32U}) {
      CheckedRows rows(NewFile(alignment, queue_depth));
      Random random(alignment + queue_depth);
      for (uint32_t i = 0; i < 600; ++i) {
        const uint32_t layer = random.Below(kLayers);
        const uint32_t list = random.Below(kLists);
        const std::string name = fmt::format("alignment {}, depth {}, {}", alignment, queue_depth, i);
        switch (random.Below(6)) {
          case 0: {
            const Status status = rows.ReadLayer(layer, name);
            ASSERT_TRUE(status.ok()) << name << ": " << status.message();
            break;
          }
          case 1: {
            const uint32_t n = 1 + random.Below(kLists - list);
            const Status status = rows.Read(layer, list, n, name);
            ASSERT_TRUE(status.ok()) << name << ": " << status.message();
            break;
          }
          case 2: rows.Forget(layer, list); break;
          default: ASSERT_TRUE(rows.Write(layer, list).ok()) << name;
        }
      }
      EXPECT_EQ(rows.store().stats().records_read_again, 0U);
    }
  }
}

// No two requests that concern each other are in flight together.
TEST_F(RowStoreTest, TheOrderOfTheDiskChangesNothing) {
  CheckedRows rows(std::make_unique<NewestFirstFile>(NewFile()));
  const Status status = Scenario(rows, "newest first");
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(rows.store().stats().records_read_again, 0U);
}

TEST_F(RowStoreTest, NothingIsAllocatedAfterwards) {
  CheckedRows rows(NewFile());
  ASSERT_TRUE(Scenario(rows, "first").ok());
  const uint64_t before = CurrentHeapUse().n_allocations;
  const std::string none;
  ASSERT_TRUE(Scenario(rows, none).ok());
  EXPECT_EQ(CurrentHeapUse().n_allocations, before);
}

// A list whose write has failed is an error until it is written again, or forgotten.
TEST_F(RowStoreTest, AListThatCouldNotBeWrittenIsLost) {
  FaultyBlockFile* faulty = nullptr;
  CheckedRows rows(
      NewFaulty({.faults = {{FaultKind::kNoSpace, IoKind::kWrite, 1, 2}}, .random_kinds = {}}, &faulty));
  ASSERT_TRUE(rows.Write(0, 0).ok());
  ASSERT_TRUE(rows.Write(0, 1).ok());
  ASSERT_TRUE(rows.Write(0, 2).ok());
  ASSERT_TRUE(rows.store().Flush().ok());
  for (uint32_t i = 0; i < 2; ++i) {
    const Status status = rows.ReadLayer(0, "lost");
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_NE(status.message().find("layer 0, stream 1 could not be written"), std::string::npos)
        << status.message();
    EXPECT_TRUE(status.message().ends_with(": No space left on device")) << status.message();
  }
  ASSERT_TRUE(rows.Write(0, 1).ok());
  rows.Forget(0, 2);
  EXPECT_TRUE(rows.ReadLayer(0, "again").ok());
}

// One that was forgotten while its write was on its way: that it fails concerns nobody.
TEST_F(RowStoreTest, AForgottenWriteThatFailsIsForgotten) {
  FaultyBlockFile* faulty = nullptr;
  CheckedRows rows(
      NewFaulty({.faults = {{FaultKind::kIoError, IoKind::kWrite, 0, 1}}, .random_kinds = {}}, &faulty));
  ASSERT_TRUE(rows.Write(1, 1).ok());
  rows.Forget(1, 1);
  ASSERT_TRUE(rows.store().Flush().ok());
  EXPECT_FALSE(rows.store().IsWritten(1, 1));
  ASSERT_TRUE(rows.Write(1, 1).ok());
  EXPECT_TRUE(rows.ReadLayer(1, "written again").ok());
}

// What is asked of a file.
class AskedFile final : public WrappingFile {
 public:
  struct Asked {
    uint64_t reserved = 0;
    std::vector<std::pair<uint64_t, uint64_t>> requests;  // offset, bytes
  };
  AskedFile(std::unique_ptr<BlockFile> file, Asked* asked) : WrappingFile(std::move(file)), asked_(*asked) {}

  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      asked_.requests.emplace_back(request.offset, request.segments[0].iov_len);
    }
    return file_->Submit(requests);
  }
  Status Reserve(uint64_t bytes) override {
    asked_.reserved = bytes;
    return file_->Reserve(bytes);
  }

 private:
  Asked& asked_;
};

// The numbers of docs/formats/index_rows.md.
TEST_F(RowStoreTest, ListsLieWhereTheFormatSays) {
  AskedFile::Asked asked;
  CheckedRows rows(std::make_unique<AskedFile>(NewFile(4096), &asked));
  EXPECT_EQ(asked.reserved, 98304U);
  ASSERT_TRUE(rows.Write(2, 1, 4000).ok());
  ASSERT_TRUE(rows.Write(2, 2, 5000).ok());
  ASSERT_TRUE(rows.ReadLayer(2, "layer 2").ok());
  ASSERT_TRUE(rows.Read(2, 0, 2, "a part of it").ok());
  using Request = std::pair<uint64_t, uint64_t>;
  EXPECT_EQ(asked.requests,
            (std::vector<Request>{{57344, 4096}, {65536, 8192}, {49152, 24576}, {49152, 12288}}));
  EXPECT_EQ(RowStore::StagingBytes({kLayers, kLists, kListBytes}, 4096), 40960U);
  EXPECT_EQ(kLayers * kLists * RowStore::kBytesOfList, 96U);
}

}  // namespace
}  // namespace kvrun::testing
