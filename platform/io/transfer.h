// One request while it is carried out: what is left of it after each answer of the system. Pure bookkeeping,
// the same for every back end.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "platform/io/block_file.h"

namespace kvrun {

struct Transfer {
  IoKind kind = IoKind::kRead;
  uint64_t tag = 0;
  uint64_t offset = 0;
  uint64_t remaining_bytes = 0;
  uint32_t first_segment = 0;
  uint32_t end_segment = 0;
  uint32_t n_retries = 0;  // answers in a row without progress
  std::array<iovec, kMaxIoSegments> segments;

  std::span<const iovec> left() const {
    return std::span(segments).subspan(first_segment, end_segment - first_segment);
  }
};

// How often EINTR, EAGAIN or a write of no whole block is tried again before it is an error.
inline constexpr uint32_t kMaxTransferRetries = 100;

// Fills `transfer`. Answers the error number if there is nothing to hand to the system: 0 for a request
// without bytes, EINVAL for one that must not be made.
std::optional<int> BeginTransfer(const IoRequest& request, uint32_t alignment_bytes, Transfer& transfer);

// Takes the system's answer: bytes, or a negative errno. Answers the error number (0: complete) once the
// transfer is over; nothing if the rest has to be handed to the system again.
std::optional<int> AdvanceTransfer(Transfer& transfer, int64_t answer, uint32_t alignment_bytes);

}  // namespace kvrun
