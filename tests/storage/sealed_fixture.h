// What the tests of sealed files share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "platform/io/seal.h"
#include "runtime/store/sealed_file.h"
#include "runtime/store/sealed_units.h"
#include "tests/storage/numbered_key.h"
#include "tests/storage/power_cut_io.h"
#include "tests/storage/save_point_fixture.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {

inline constexpr char kSealedName[] = "s";
inline constexpr uint32_t kSealedUnits = 12;
inline constexpr uint64_t kSealedBytes = uint64_t{kSealedUnits} * kUnitBytes;
inline constexpr uint32_t kSealedDepth = 3;

inline constexpr uint32_t kHelpers = 2;

inline SealedShape ShapeOf(uint64_t size_bytes, uint32_t unit_bytes = kUnitBytes) {
  return {.size_bytes = size_bytes, .unit_bytes = unit_bytes};
}

// A file with save points and one process after another that has it.
class SealedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
    Open();
  }

  std::unique_ptr<BlockFile> Below() { return std::make_unique<PowerCutFile>(disk_, kSealedDepth); }
  // Begins, or goes on where the last save point is.
  Status TryOpen(std::unique_ptr<BlockFile> below, const SecretKey& key, uint64_t size_bytes = kSealedBytes,
                 uint32_t number = 0) {
    Close();
    Result<std::unique_ptr<StateFile>> state = StateFile::Open(kSealedName, false, &io_);
    const bool is_new = state.status().code() == StatusCode::kNotFound;
    state_ = OrDie(is_new ? StateFile::Create(kSealedName, &io_) : std::move(state));
    auto kept = OrDie(SavePointFile::Create(std::move(below), size_bytes, kUnitBytes));
    kept_ = kept.get();
    file_ = OrDie(SealedFile::Create(std::move(kept), key, ShapeOf(size_bytes), number, kHelpers));
    if (is_new) return Status::Ok();
    StateLoader loader(*state_);
    KVRUN_RETURN_IF_ERROR(kept_->VisitState(loader, 0));
    return file_->VisitState(loader);
  }
  void Open() { RunOrDie(TryOpen(Below(), KeyNumber(1))); }
  void Close() {
    file_.reset();
    kept_ = nullptr;
    state_.reset();
  }
  Status TrySave() {
    KVRUN_RETURN_IF_ERROR(file_->Sync());
    KVRUN_RETURN_IF_ERROR(state_->BeginSave());
    StateSaver saver(*state_);
    KVRUN_RETURN_IF_ERROR(kept_->VisitState(saver, 0));
    KVRUN_RETURN_IF_ERROR(file_->VisitState(saver));
    KVRUN_RETURN_IF_ERROR(state_->Commit());
    kept_->EndSave();
    return Status::Ok();
  }
  void Save() { RunOrDie(TrySave()); }
  size_t NumOpenings() const { return *state_->SizeOf({StatePart::kSeals, 0}) / 40; }

  void ChangeDisk(size_t offset, std::byte flip) {
    const size_t begin = offset / PowerCutDisk::kBlockBytes * PowerCutDisk::kBlockBytes;
    std::vector<std::byte> block(
        disk_.bytes().begin() + static_cast<ptrdiff_t>(begin),
        disk_.bytes().begin() + static_cast<ptrdiff_t>(begin + PowerCutDisk::kBlockBytes));
    block[offset - begin] ^= flip;
    disk_.WriteBlock(begin, block);
  }
  std::vector<std::byte> DiskUnit(uint32_t place) const {
    const auto begin = disk_.bytes().begin() + static_cast<ptrdiff_t>(size_t{place} * kUnitBytes);
    return {begin, begin + kUnitBytes};
  }
  void PutDiskUnit(uint32_t place, std::span<const std::byte> bytes) {
    for (size_t at = 0; at < kUnitBytes; at += PowerCutDisk::kBlockBytes)
      disk_.WriteBlock(size_t{place} * kUnitBytes + at, bytes.subspan(at, PowerCutDisk::kBlockBytes));
  }
  // Found, and nothing of it is handed out.
  ::testing::AssertionResult DoesNotOpen(uint32_t unit) {
    const AlignedMemory memory(kUnitBytes);
    const int error = DoOne(*file_, IoKind::kRead, uint64_t{unit} * kUnitBytes, memory.span());
    if (error != EBADMSG) return ::testing::AssertionFailure() << "error " << error;
    if (AreZeros(memory.span())) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "something of it is there";
  }
  static bool AreZeros(std::span<const std::byte> bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; });
  }

  PowerCutIo io_{1};
  PowerCutDisk disk_{2};
  std::unique_ptr<StateFile> state_;
  std::unique_ptr<SealedFile> file_;
  SavePointFile* kept_ = nullptr;
};

}  // namespace kvrun::testing
