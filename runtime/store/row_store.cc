#include "runtime/store/row_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/saturating.h"
#include "platform/base/units.h"

namespace kvrun {

uint64_t RowStore::Stride(const RowStoreShape& shape, uint32_t alignment_bytes) {
  return RoundUp<uint64_t>(std::max(shape.list_bytes, shape.lane_bytes), alignment_bytes);
}

uint64_t RowStore::StagingBytes(const RowStoreShape& shape, uint32_t alignment_bytes) {
  const uint64_t n_lists = uint64_t{shape.n_lists} + kWrites;
  return SaturatingProduct({n_lists, Stride(shape, alignment_bytes)});
}

Result<std::unique_ptr<RowStore>> RowStore::Create(std::unique_ptr<BlockFile> file,
                                                   const RowStoreShape& shape) {
  if (shape.list_bytes > UINT32_MAX) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("a list of the KV index of {} is too long to lie on flash",
                              FormatBytes(shape.list_bytes)));
  }
  const uint32_t alignment = file->mode().alignment_bytes;
  const uint64_t staging_bytes = StagingBytes(shape, alignment);
  KVRUN_RETURN_IF_ERROR(
      file->Reserve(SaturatingProduct({shape.n_layers, shape.n_lists, Stride(shape, alignment)})));
  std::unique_ptr<RowStore> store(new RowStore(std::move(file), shape));
  store->staging_.reset(
      static_cast<std::byte*>(::operator new(staging_bytes, kMemoryAlignment, std::nothrow)));
  if (store->staging_ == nullptr) {
    return Status(StatusCode::kOutOfMemory,
                  fmt::format("there is not enough memory for reading rows of the KV index, which needs {}",
                              FormatBytes(staging_bytes)));
  }
  std::memset(store->staging_.get(), 0, staging_bytes);  // what lies behind a list's end is written, too
  store->read_.memory = store->staging_.get();
  for (uint32_t i = 0; i < kWrites; ++i) {
    store->writes_[i].memory = store->staging_.get() + (shape.n_lists + i) * store->stride_;
  }
  const iovec region{store->staging_.get(), staging_bytes};
  store->file_->RegisterMemory({&region, 1});
  return store;
}

RowStore::RowStore(std::unique_ptr<BlockFile> file, const RowStoreShape& shape)
    : shape_(shape),
      stride_(Stride(shape, file->mode().alignment_bytes)),
      checksums_(uint64_t{shape.n_layers} * shape.n_lists),
      lengths_(checksums_.size()),
      file_(std::move(file)) {}

uint64_t RowStore::Padded(uint64_t bytes) const {
  return RoundUp<uint64_t>(bytes, file_->mode().alignment_bytes);
}

std::string RowStore::Named(uint64_t place) const {
  return fmt::format("the index of clusters of layer {}, stream {}", place / shape_.n_lists,
                     place % shape_.n_lists);
}

// --- Requests.

Status RowStore::Submit(Slot& slot, IoKind kind, uint64_t place, std::byte* memory, uint32_t n_lists) {
  KVRUN_RETURN_IF_ERROR(error_);
  const uint64_t last_bytes = Padded(std::max(lengths_[place + n_lists - 1], 1U));
  slot.segment = {memory, (n_lists - 1) * stride_ + last_bytes};
  const IoRequest request{
      .kind = kind, .offset = place * stride_, .segments = {&slot.segment, 1}, .tag = TagOf(slot)};
  slot.in_flight = true;
  for (size_t taken = 0; taken == 0;) {
    Result<size_t> submitted = file_->Submit({&request, 1});
    if (!submitted.ok()) {
      slot.in_flight = false;
      return error_ = submitted.status();
    }
    taken = *submitted;
    if (taken == 0) KVRUN_RETURN_IF_ERROR(Poll(1));  // as others are in flight
  }
  const bool reads = kind == IoKind::kRead;
  (reads ? stats_.reads : stats_.writes) += 1;
  (reads ? stats_.read_bytes : stats_.written_bytes) += slot.segment.iov_len;
  return Status::Ok();
}

Status RowStore::Poll(size_t at_least) {
  KVRUN_RETURN_IF_ERROR(error_);
  const Result<size_t> done = file_->Complete(completions_, at_least);
  if (!done.ok()) return error_ = done.status();
  for (const IoCompletion& completion : std::span(completions_).first(*done)) {
    Slot& slot = completion.tag == kReadTag ? read_ : writes_[completion.tag];
    slot.in_flight = false;
    slot.error_number = completion.error_number;
    if (completion.tag == kReadTag)
      slot.error_number = ErrorOfRead(slot.error_number);
    else
      OnWritten(slot);
  }
  return Status::Ok();
}

void RowStore::OnWritten(Slot& slot) {
  if (slot.error_number != 0 && !slot.is_forgotten) {
    checksums_[slot.place] = kLost;
    write_error_number_ = slot.error_number;
  }
  slot.is_used = false;
  --n_writes_;
}

Status RowStore::Wait(const Slot& slot) {
  if (!slot.in_flight) return Status::Ok();
  const auto begin = std::chrono::steady_clock::now();
  while (slot.in_flight) KVRUN_RETURN_IF_ERROR(Poll(1));
  const std::chrono::duration<double, std::milli> waited = std::chrono::steady_clock::now() - begin;
  stats_.read_wait_ms += waited.count();
  return Status::Ok();
}

// --- Reading.

Status RowStore::Begin(uint32_t layer, uint32_t first, uint32_t n) {
  KVRUN_CHECK(layer < shape_.n_layers && n > 0 && first + n <= shape_.n_lists && !read_.is_used);
  read_.place = Place(layer, first);
  read_.n = n;
  KVRUN_RETURN_IF_ERROR(WaitForWrites(read_.place, n));
  KVRUN_RETURN_IF_ERROR(Submit(read_, IoKind::kRead, read_.place, read_.memory, n));
  read_.is_used = true;
  return Status::Ok();
}

bool RowStore::Matches(uint64_t place) const { return Checksum(place, Staged(place)) == checksums_[place]; }

Status RowStore::Lost(uint64_t place) const {
  KVRUN_RETURN_IF_ERROR(error_);
  return StatusFromErrno(write_error_number_,
                         fmt::format("{} could not be written to flash, and the sequence has to be "
                                     "computed again (--kv-dir names another folder)",
                                     Named(place)));
}

Result<uint64_t> RowStore::Copy(uint32_t layer, uint32_t list, std::span<std::byte> to) {
  KVRUN_CHECK(to.size() == shape_.list_bytes && HasBegun(layer, list));
  const uint64_t place = Place(layer, list);
  if (checksums_[place] == kLost) return Lost(place);
  KVRUN_RETURN_IF_ERROR(Wait(read_));
  const int error_of_all = read_.error_number;
  int error_number = error_of_all;
  CheckedRead read;
  const auto look = [&] {
    return read.OnRead(
        error_number == 0, 1, [&](uint32_t) { return Matches(place); }, CheckedRead::Errors::kAreTriedAgain);
  };
  for (auto next = look(); next != CheckedRead::Next::kDone; next = look()) {
    if (next == CheckedRead::Next::kGiveUp) {
      if (error_number == 0) return CameBackChanged(Named(place), "sequence");
      return StatusFromErrno(error_number, fmt::format("{} cannot be read from flash, twice (--kv-dir names "
                                                       "another folder)",
                                                       Named(place)));
    }
    ++stats_.records_read_again;
    KVRUN_RETURN_IF_ERROR(WaitForWrites(place, 1));
    KVRUN_RETURN_IF_ERROR(Submit(read_, IoKind::kRead, place, Staged(place), 1));
    KVRUN_RETURN_IF_ERROR(Wait(read_));
    // Others of a read that has failed are read again as well.
    error_number = std::exchange(read_.error_number, error_of_all);
  }
  std::memcpy(to.data(), Staged(place), lengths_[place]);
  return uint64_t{lengths_[place]};
}

Status RowStore::End() {
  read_.is_used = false;
  return Wait(read_);
}

// --- Writing.

Status RowStore::WaitForWrites(uint64_t first_place, uint32_t n) {
  for (const Slot& slot : writes_) {
    const bool is_of_them = slot.place >= first_place && slot.place - first_place < n;
    while (slot.in_flight && is_of_them) KVRUN_RETURN_IF_ERROR(Poll(1));
  }
  return Status::Ok();
}

Status RowStore::Write(uint32_t layer, uint32_t list, std::span<const std::byte> bytes) {
  KVRUN_CHECK(layer < shape_.n_layers && list < shape_.n_lists);
  KVRUN_CHECK(!bytes.empty() && bytes.size() <= shape_.list_bytes);
  const uint64_t place = Place(layer, list);
  checksums_[place] = kLost;                       // until it is on its way
  KVRUN_RETURN_IF_ERROR(WaitForWrites(place, 1));  // two writes to one place have no order
  while (n_writes_ == kWrites) KVRUN_RETURN_IF_ERROR(Poll(1));
  Slot& slot = *std::find_if(writes_.begin(), writes_.end(), [](const Slot& s) { return !s.is_used; });
  std::memcpy(slot.memory, bytes.data(), bytes.size());
  lengths_[place] = static_cast<uint32_t>(bytes.size());
  slot.place = place;
  slot.n = 1;
  slot.is_forgotten = false;
  KVRUN_RETURN_IF_ERROR(Submit(slot, IoKind::kWrite, place, slot.memory, 1));
  slot.is_used = true;
  ++n_writes_;
  checksums_[place] = Checksum(place, bytes.data());
  return Status::Ok();
}

void RowStore::Forget(uint32_t layer, uint32_t list) {
  const uint64_t place = Place(layer, list);
  checksums_[place] = kNotWritten;
  for (Slot& slot : writes_) {
    if (slot.in_flight && slot.place == place) slot.is_forgotten = true;
  }
}

Status RowStore::Flush() {
  while (n_writes_ > 0) KVRUN_RETURN_IF_ERROR(Poll(1));
  return Status::Ok();
}

Status RowStore::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kStride = 20, kChecksums, kLengths };  // beside those of the store of clusters
  KVRUN_CHECK(n_writes_ == 0 && !read_.is_used);
  uint64_t stride = stride_;
  KVRUN_RETURN_IF_ERROR(visitor.Value({StatePart::kStore, kStride}, &stride));
  if (stride != stride_) {
    return {StatusCode::kInvalidArgument,
            fmt::format("lists of the KV index that were kept lie {} bytes apart, and there would be {}",
                        stride, stride_)};
  }
  for (uint64_t place = 0; place < checksums_.size(); ++place) {
    if (checksums_[place] == kLost) return Lost(place);
  }
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kStore, kChecksums}, std::span(checksums_)));
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kStore, kLengths}, std::span(lengths_)));
  for (uint64_t place = 0; place < checksums_.size(); ++place) {
    const bool is_possible = lengths_[place] > 0 && lengths_[place] <= shape_.list_bytes;
    if (checksums_[place] == kNotWritten || (checksums_[place] != kLost && is_possible)) continue;
    return {StatusCode::kCorrupt, fmt::format("{} contradicts itself: {} bytes of {}", Named(place),
                                              lengths_[place], shape_.list_bytes)};
  }
  return Status::Ok();
}

}  // namespace kvrun
