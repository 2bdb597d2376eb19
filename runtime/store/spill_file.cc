#include "runtime/store/spill_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"

namespace kvrun {

SpillFile::SpillFile(std::unique_ptr<BlockFile> file, uint64_t size_bytes)
    : file_(std::move(file)),
      buffer_(static_cast<std::byte*>(::operator new(kBufferBytes, kMemoryAlignment))),
      checksums_(CeilDiv(size_bytes, kOffsetAlignment)) {}

Result<std::unique_ptr<SpillFile>> SpillFile::Create(std::unique_ptr<BlockFile> file, uint64_t size_bytes) {
  const Status reserved = file->Reserve(RoundUp(size_bytes, kOffsetAlignment));
  if (!reserved.ok()) return reserved.WithContext("making room for a prompt's intermediate results");
  std::unique_ptr<SpillFile> spill(new SpillFile(std::move(file), size_bytes));
  const iovec region{spill->buffer_.get(), kBufferBytes};
  spill->file_->RegisterMemory({&region, 1});
  return spill;
}

Result<int> SpillFile::Transfer(IoKind kind, uint64_t offset, std::byte* bytes, uint64_t length) {
  const iovec segment{bytes, RoundUp<uint64_t>(length, file_->mode().alignment_bytes)};
  const IoRequest request{.kind = kind, .offset = offset, .segments = {&segment, 1}, .tag = 0};
  for (size_t taken = 0; taken == 0;) {
    KVRUN_ASSIGN_OR_RETURN(taken, file_->Submit({&request, 1}));
  }
  IoCompletion completion;
  KVRUN_RETURN_IF_ERROR(file_->Complete({&completion, 1}, 1).status());
  return completion.error_number;
}

Status SpillFile::TransferBuffer(IoKind kind, uint64_t offset, uint64_t length) {
  KVRUN_ASSIGN_OR_RETURN(const int error_number, Transfer(kind, offset, buffer_.get(), length));
  return StatusOf(error_number, kind, offset, length);
}

Status SpillFile::StatusOf(int error_number, IoKind kind, uint64_t offset, uint64_t length) {
  if (error_number == 0) return Status::Ok();
  return StatusFromErrno(
      error_number,
      fmt::format("cannot {} {} of a prompt's intermediate results at {} (--kv-dir names another folder)",
                  kind == IoKind::kRead ? "read" : "write", FormatBytes(length), offset));
}

Result<bool> SpillFile::TransferInPlace(IoKind kind, uint64_t offset, std::byte* bytes, uint64_t length) {
  const uint64_t alignment = file_->mode().alignment_bytes;
  const bool is_aligned = reinterpret_cast<uintptr_t>(bytes) % alignment == 0 && length % alignment == 0;
  if (memory_refused_ || !is_aligned) return false;
  KVRUN_ASSIGN_OR_RETURN(const int error_number, Transfer(kind, offset, bytes, length));
  memory_refused_ = error_number == EFAULT;
  if (memory_refused_) return false;
  KVRUN_RETURN_IF_ERROR(StatusOf(error_number, kind, offset, length));
  return true;
}

uint32_t SpillFile::Checksum(uint64_t offset, std::span<const std::byte> piece) {
  const auto sum = static_cast<uint32_t>(XXH3_64bits_withSeed(piece.data(), piece.size(), offset));
  return sum == kNotWritten ? 1 : sum;
}

Status SpillFile::Write(uint64_t offset, std::span<const std::byte> bytes) {
  KVRUN_CHECK(offset % kOffsetAlignment == 0);
  KVRUN_CHECK(offset + bytes.size() <= checksums_.size() * kOffsetAlignment);
  std::fill_n(checksums_.begin() + static_cast<ptrdiff_t>(offset / kOffsetAlignment),
              CeilDiv<uint64_t>(bytes.size(), kOffsetAlignment), kNotWritten);
  // Of a write, nothing changes the bytes.
  auto* const memory = const_cast<std::byte*>(bytes.data());
  KVRUN_ASSIGN_OR_RETURN(const bool is_done, TransferInPlace(IoKind::kWrite, offset, memory, bytes.size()));
  for (uint64_t done = 0; done < bytes.size(); done += kBufferBytes) {
    const std::span<const std::byte> piece =
        bytes.subspan(done, std::min<uint64_t>(kBufferBytes, bytes.size() - done));
    if (!is_done) {
      std::memcpy(buffer_.get(), piece.data(), piece.size());
      KVRUN_RETURN_IF_ERROR(TransferBuffer(IoKind::kWrite, offset + done, piece.size()));
    }
    checksums_[(offset + done) / kOffsetAlignment] = Checksum(offset + done, piece);
  }
  stats_.written_bytes += bytes.size();
  return Status::Ok();
}

Status SpillFile::ReadChecked(uint64_t offset, std::span<std::byte> piece, bool is_there) {
  const uint32_t checksum = checksums_[offset / kOffsetAlignment];
  if (is_there && Checksum(offset, piece) == checksum) return Status::Ok();
  for (int attempt = is_there ? 1 : 0; attempt < 2; ++attempt) {  // a bit may have flipped on its way
    KVRUN_RETURN_IF_ERROR(TransferBuffer(IoKind::kRead, offset, piece.size()));
    std::memcpy(piece.data(), buffer_.get(), piece.size());
    if (Checksum(offset, piece) == checksum) return Status::Ok();
  }
  return {StatusCode::kCorrupt,
          fmt::format("{} of a prompt's intermediate results at {} came back changed from flash, twice: the "
                      "prompt has to be computed again",
                      FormatBytes(piece.size()), offset)};
}

Status SpillFile::Read(uint64_t offset, std::span<std::byte> bytes) {
  KVRUN_CHECK(offset % kOffsetAlignment == 0);
  KVRUN_CHECK(offset + bytes.size() <= checksums_.size() * kOffsetAlignment);
  for (uint64_t done = 0; done < bytes.size(); done += kBufferBytes) {
    if (checksums_[(offset + done) / kOffsetAlignment] != kNotWritten) continue;
    return {StatusCode::kInternal,
            fmt::format("a prompt's intermediate results at {} are read before they were written",
                        offset + done)};
  }
  KVRUN_ASSIGN_OR_RETURN(const bool is_there,
                         TransferInPlace(IoKind::kRead, offset, bytes.data(), bytes.size()));
  for (uint64_t done = 0; done < bytes.size(); done += kBufferBytes) {
    const uint64_t n = std::min<uint64_t>(kBufferBytes, bytes.size() - done);
    KVRUN_RETURN_IF_ERROR(ReadChecked(offset + done, bytes.subspan(done, n), is_there));
  }
  stats_.read_bytes += bytes.size();
  return Status::Ok();
}

}  // namespace kvrun
