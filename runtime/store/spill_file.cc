#include "runtime/store/spill_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
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

// The file's bytes at `offset`, rounded up to whole blocks, from or to the buffer.
Status SpillFile::Transfer(IoKind kind, uint64_t offset, uint64_t length) {
  const iovec segment{buffer_.get(), RoundUp<uint64_t>(length, file_->mode().alignment_bytes)};
  const IoRequest request{.kind = kind, .offset = offset, .segments = {&segment, 1}, .tag = 0};
  for (size_t taken = 0; taken == 0;) {
    KVRUN_ASSIGN_OR_RETURN(taken, file_->Submit({&request, 1}));
  }
  IoCompletion completion;
  KVRUN_RETURN_IF_ERROR(file_->Complete({&completion, 1}, 1).status());
  if (completion.error_number == 0) return Status::Ok();
  return StatusFromErrno(
      completion.error_number,
      fmt::format("cannot {} {} of a prompt's intermediate results at {} (--kv-dir names another folder)",
                  kind == IoKind::kRead ? "read" : "write", FormatBytes(length), offset));
}

uint32_t SpillFile::Checksum(uint64_t offset, uint64_t length) const {
  const auto sum = static_cast<uint32_t>(XXH3_64bits_withSeed(buffer_.get(), length, offset));
  return sum == kNotWritten ? 1 : sum;
}

Status SpillFile::Write(uint64_t offset, std::span<const std::byte> bytes) {
  KVRUN_CHECK(offset % kOffsetAlignment == 0);
  KVRUN_CHECK(offset + bytes.size() <= checksums_.size() * kOffsetAlignment);
  for (uint64_t done = 0; done < bytes.size(); done += kBufferBytes) {
    const uint64_t n = std::min<uint64_t>(kBufferBytes, bytes.size() - done);
    uint32_t& checksum = checksums_[(offset + done) / kOffsetAlignment];
    checksum = kNotWritten;
    std::memcpy(buffer_.get(), bytes.data() + done, n);
    KVRUN_RETURN_IF_ERROR(Transfer(IoKind::kWrite, offset + done, n));
    checksum = Checksum(offset + done, n);
  }
  stats_.written_bytes += bytes.size();
  return Status::Ok();
}

Status SpillFile::ReadChecked(uint64_t offset, uint64_t length) {
  const uint32_t checksum = checksums_[offset / kOffsetAlignment];
  if (checksum == kNotWritten) {
    return {StatusCode::kInternal,
            fmt::format("a prompt's intermediate results at {} are read before they were written", offset)};
  }
  for (int attempt = 0; attempt < 2; ++attempt) {  // a bit may have flipped on its way
    KVRUN_RETURN_IF_ERROR(Transfer(IoKind::kRead, offset, length));
    if (Checksum(offset, length) == checksum) return Status::Ok();
  }
  return {StatusCode::kCorrupt,
          fmt::format("{} of a prompt's intermediate results at {} came back changed from flash, twice: the "
                      "prompt has to be computed again",
                      FormatBytes(length), offset)};
}

Status SpillFile::Read(uint64_t offset, std::span<std::byte> bytes) {
  KVRUN_CHECK(offset % kOffsetAlignment == 0);
  KVRUN_CHECK(offset + bytes.size() <= checksums_.size() * kOffsetAlignment);
  for (uint64_t done = 0; done < bytes.size(); done += kBufferBytes) {
    const uint64_t n = std::min<uint64_t>(kBufferBytes, bytes.size() - done);
    KVRUN_RETURN_IF_ERROR(ReadChecked(offset + done, n));
    std::memcpy(bytes.data() + done, buffer_.get(), n);
  }
  stats_.read_bytes += bytes.size();
  return Status::Ok();
}

}  // namespace kvrun
