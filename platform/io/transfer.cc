#include "platform/io/transfer.h"

#include <algorithm>
#include <cerrno>
#include <limits>

namespace kvrun {
namespace {

bool Aligned(uint64_t value, uint32_t alignment_bytes) { return value % alignment_bytes == 0; }

// Without progress: again, but not for ever.
std::optional<int> Retry(Transfer& transfer, int error_number) {
  if (++transfer.n_retries > kMaxTransferRetries) return error_number;
  return std::nullopt;
}

void Skip(Transfer& transfer, uint64_t bytes) {
  transfer.offset += bytes;
  transfer.remaining_bytes -= bytes;
  while (bytes > 0) {
    iovec& segment = transfer.segments[transfer.first_segment];
    const auto part = std::min<uint64_t>(bytes, segment.iov_len);
    segment.iov_base = static_cast<char*>(segment.iov_base) + part;
    segment.iov_len -= part;
    bytes -= part;
    if (segment.iov_len == 0) ++transfer.first_segment;
  }
}

}  // namespace

std::optional<int> BeginTransfer(const IoRequest& request, uint32_t alignment_bytes, Transfer& transfer) {
  if (request.segments.size() > kMaxIoSegments || !Aligned(request.offset, alignment_bytes)) return EINVAL;
  transfer.kind = request.kind;
  transfer.tag = request.tag;
  transfer.offset = request.offset;
  transfer.remaining_bytes = 0;
  transfer.first_segment = 0;
  transfer.end_segment = 0;
  transfer.n_retries = 0;
  constexpr uint64_t kMaxOffset = std::numeric_limits<int64_t>::max();
  for (const iovec& segment : request.segments) {
    // Some file systems take what is not aligned and go through the page cache without a word.
    if (!Aligned(segment.iov_len, alignment_bytes) ||
        !Aligned(reinterpret_cast<uintptr_t>(segment.iov_base), alignment_bytes)) {
      return EINVAL;
    }
    if (segment.iov_len == 0) continue;
    if (segment.iov_len > kMaxOffset - transfer.remaining_bytes) return EINVAL;
    transfer.remaining_bytes += segment.iov_len;
    transfer.segments[transfer.end_segment++] = segment;
  }
  if (request.offset > kMaxOffset - transfer.remaining_bytes) return EINVAL;
  if (transfer.remaining_bytes == 0) return 0;
  return std::nullopt;
}

std::optional<int> AdvanceTransfer(Transfer& transfer, int64_t answer, uint32_t alignment_bytes) {
  if (answer == -EINTR || answer == -EAGAIN) return Retry(transfer, static_cast<int>(-answer));
  if (answer < 0) return static_cast<int>(-answer);
  if (static_cast<uint64_t>(answer) >= transfer.remaining_bytes) return 0;
  // Direct I/O goes on at a whole block only.
  const auto progress = static_cast<uint64_t>(answer) / alignment_bytes * alignment_bytes;
  if (progress == 0) {
    if (transfer.kind == IoKind::kRead) return ENODATA;
    return Retry(transfer, EIO);
  }
  transfer.n_retries = 0;
  Skip(transfer, progress);
  return std::nullopt;
}

}  // namespace kvrun
