#include "runtime/store/staging_ring.h"

namespace kvrun {

std::optional<StagingRing::Part> StagingRing::Allocate(uint64_t bytes) {
  if (n_held_ == 0) end_ = 0;
  if (n_held_ == held_.size()) return std::nullopt;
  const uint64_t left_out = end_ + bytes > capacity_bytes_ ? capacity_bytes_ - end_ : 0;
  if (used_bytes_ + left_out + bytes > capacity_bytes_) return std::nullopt;
  const uint64_t offset = left_out > 0 ? 0 : end_ % capacity_bytes_;
  const auto id = static_cast<uint32_t>((first_ + n_held_) % held_.size());
  held_[id] = {left_out + bytes, false};
  ++n_held_;
  used_bytes_ += left_out + bytes;
  end_ = offset + bytes;
  return Part{offset, id};
}

void StagingRing::Release(uint32_t id) {
  held_[id].released = true;
  while (n_held_ > 0 && held_[first_].released) {
    used_bytes_ -= held_[first_].bytes;
    first_ = static_cast<uint32_t>((first_ + 1) % held_.size());
    --n_held_;
  }
}

}  // namespace kvrun
