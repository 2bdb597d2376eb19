#include "runtime/store/spill_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
  return kind == IoKind::kRead ? ErrorOfRead(completion.error_number) : completion.error_number;
}

// Pieces as large as a place in the buffer; a place is used again as soon as its piece is there.
Status SpillFile::TransferCopied(IoKind kind, uint64_t offset, std::span<std::byte> bytes) {
  const uint64_t alignment = file_->mode().alignment_bytes;
  const uint64_t place_bytes = std::max<uint64_t>(kRequestBytes, alignment);
  constexpr size_t kMostPlaces = kBufferBytes / kRequestBytes;
  std::array<std::span<std::byte>, kMostPlaces> pieces;  // by place; empty: none
  std::array<iovec, kMostPlaces> segments;
  const size_t n_places = kBufferBytes / place_bytes;
  uint64_t begun = 0;
  size_t n_under_way = 0;
  Status status;
  const auto begin_next = [&]() -> Result<bool> {
    const auto place = static_cast<size_t>(
        std::find_if(pieces.begin(), pieces.end(), [](const auto& p) { return p.empty(); }) - pieces.begin());
    const std::span<std::byte> piece =
        bytes.subspan(begun, std::min<uint64_t>(place_bytes, bytes.size() - begun));
    std::byte* const memory = buffer_.get() + place * place_bytes;
    if (kind == IoKind::kWrite) std::memcpy(memory, piece.data(), piece.size());
    segments[place] = {memory, RoundUp<uint64_t>(piece.size(), alignment)};
    const IoRequest request{
        .kind = kind, .offset = offset + begun, .segments = {&segments[place], 1}, .tag = place};
    KVRUN_ASSIGN_OR_RETURN(const size_t taken, file_->Submit({&request, 1}));
    if (taken == 0) return false;
    pieces[place] = piece;
    begun += piece.size();
    ++n_under_way;
    return true;
  };
  while (n_under_way > 0 || (status.ok() && begun < bytes.size())) {
    bool is_taken = true;
    while (is_taken && status.ok() && begun < bytes.size() && n_under_way < n_places) {
      const Result<bool> taken = begin_next();
      if (taken.ok()) {
        is_taken = *taken;
      } else {
        status = taken.status();
      }
    }
    if (n_under_way == 0) continue;
    IoCompletion completion;
    KVRUN_RETURN_IF_ERROR(file_->Complete({&completion, 1}, 1).status());
    --n_under_way;
    const std::span<std::byte> piece = std::exchange(pieces[completion.tag], {});
    const auto at = static_cast<uint64_t>(piece.data() - bytes.data());
    const int error_number =
        kind == IoKind::kRead ? ErrorOfRead(completion.error_number) : completion.error_number;
    if (status.ok()) status = StatusOf(error_number, kind, offset + at, piece.size());
    if (kind == IoKind::kRead && error_number == 0) {
      std::memcpy(piece.data(), buffer_.get() + completion.tag * place_bytes, piece.size());
    }
  }
  return status;
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

Status SpillFile::Write(uint64_t offset, std::span<const std::byte> bytes) {
  KVRUN_CHECK(offset % kOffsetAlignment == 0);
  KVRUN_CHECK(offset + bytes.size() <= checksums_.size() * kOffsetAlignment);
  std::fill_n(checksums_.begin() + static_cast<ptrdiff_t>(offset / kOffsetAlignment),
              CeilDiv<uint64_t>(bytes.size(), kOffsetAlignment), kNotWritten);
  // Of a write, nothing changes the bytes.
  auto* const memory = const_cast<std::byte*>(bytes.data());
  KVRUN_ASSIGN_OR_RETURN(const bool is_done, TransferInPlace(IoKind::kWrite, offset, memory, bytes.size()));
  if (!is_done) KVRUN_RETURN_IF_ERROR(TransferCopied(IoKind::kWrite, offset, {memory, bytes.size()}));
  for (uint64_t done = 0; done < bytes.size(); done += kOffsetAlignment) {
    checksums_[(offset + done) / kOffsetAlignment] = ChecksumOf(
        bytes.subspan(done, std::min<uint64_t>(kOffsetAlignment, bytes.size() - done)), offset + done);
  }
  stats_.written_bytes += bytes.size();
  return Status::Ok();
}

Status SpillFile::Read(uint64_t offset, std::span<std::byte> bytes) {
  KVRUN_CHECK(offset % kOffsetAlignment == 0);
  KVRUN_CHECK(offset + bytes.size() <= checksums_.size() * kOffsetAlignment);
  for (uint64_t done = 0; done < bytes.size(); done += kOffsetAlignment) {
    if (checksums_[(offset + done) / kOffsetAlignment] != kNotWritten) continue;
    return {StatusCode::kInternal,
            fmt::format("a prompt's intermediate results at {} are read before they were written",
                        offset + done)};
  }
  KVRUN_ASSIGN_OR_RETURN(const bool is_there,
                         TransferInPlace(IoKind::kRead, offset, bytes.data(), bytes.size()));
  if (!is_there) KVRUN_RETURN_IF_ERROR(TransferCopied(IoKind::kRead, offset, bytes));
  const auto n_pieces = static_cast<uint32_t>(CeilDiv<uint64_t>(bytes.size(), kOffsetAlignment));
  const auto piece = [&](uint32_t i) {
    const uint64_t begin = i * kOffsetAlignment;
    return bytes.subspan(begin, std::min<uint64_t>(kOffsetAlignment, bytes.size() - begin));
  };
  const auto is_right = [&](uint32_t i) {
    const uint64_t at = offset + i * kOffsetAlignment;
    return ChecksumOf(piece(i), at) == checksums_[at / kOffsetAlignment];
  };
  CheckedRead read;
  const auto look = [&] { return read.OnRead(true, n_pieces, is_right); };
  for (auto next = look(); next != CheckedRead::Next::kDone; next = look()) {
    const std::span<std::byte> again = piece(read.first());
    const uint64_t at = offset + read.first() * kOffsetAlignment;
    if (next == CheckedRead::Next::kGiveUp) {
      return CameBackChanged(
          fmt::format("{} of a prompt's intermediate results at {}", FormatBytes(again.size()), at),
          "prompt");
    }
    KVRUN_RETURN_IF_ERROR(TransferCopied(IoKind::kRead, at, again));
  }
  stats_.read_bytes += bytes.size();
  return Status::Ok();
}

}  // namespace kvrun
