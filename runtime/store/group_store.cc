#include "runtime/store/group_store.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "platform/base/units.h"

namespace kvrun {
namespace {

constexpr uint64_t kMaxRunBytes = kMiB;        // more per request is not faster, and keeps the queue short
constexpr uint64_t kMinRunBytes = 256 * kKiB;  // of writes, where the staging allows

// UINT64_MAX where that is too small.
uint64_t Product(std::initializer_list<uint64_t> factors) {
  uint64_t product = 1;
  for (const uint64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return UINT64_MAX;
  }
  return product;
}

uint32_t StagedGroups(uint64_t staging_bytes, uint64_t stride_bytes) {
  const uint64_t wanted = std::clamp(staging_bytes / 2, kMinRunBytes, kMaxRunBytes);
  const uint64_t n = std::min(CeilDiv(wanted, stride_bytes), staging_bytes / stride_bytes);
  return static_cast<uint32_t>(n);
}

}  // namespace

uint64_t GroupStore::StrideBytes(const GroupStoreShape& shape, const IoMode& mode) {
  return RoundUp<uint64_t>(shape.record_bytes, mode.alignment_bytes);
}

uint64_t GroupStore::UsableStagingBytes(uint64_t staging_bytes, const IoMode& mode) {
  return staging_bytes / mode.alignment_bytes * mode.alignment_bytes;
}

uint64_t GroupStore::NumRecords(const GroupStoreShape& shape) {
  return Product({shape.n_layers, shape.n_streams, shape.n_groups});
}

uint64_t GroupStore::FileBytes(const GroupStoreShape& shape, const IoMode& mode) {
  return Product({shape.n_layers, shape.n_streams, shape.n_groups, StrideBytes(shape, mode)});
}

uint64_t GroupStore::MemoryBytes(const GroupStoreShape& shape, uint64_t staging_bytes, const IoMode& mode) {
  const uint64_t request_bytes = sizeof(Request) + sizeof(IoRequest) + sizeof(IoCompletion);
  return sizeof(GroupStore) + Product({NumRecords(shape), sizeof(uint32_t)}) +
         UsableStagingBytes(staging_bytes, mode) + mode.queue_depth * request_bytes +
         StagingRing::MemoryBytes(2 * mode.queue_depth) + BlockFileMemoryBytes(mode);
}

Result<std::unique_ptr<GroupStore>> GroupStore::Create(std::unique_ptr<BlockFile> file,
                                                       const GroupStoreShape& shape, uint64_t staging_bytes) {
  const uint64_t file_bytes = FileBytes(shape, file->mode());
  if (file_bytes == 0 || file_bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a KV store cannot have {} layers, {} streams and {} groups of {} bytes",
                              shape.n_layers, shape.n_streams, shape.n_groups, shape.record_bytes));
  }
  const uint64_t usable_bytes = UsableStagingBytes(staging_bytes, file->mode());
  const uint64_t stride_bytes = StrideBytes(shape, file->mode());
  if (usable_bytes < stride_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the KV store needs at least {} of staging memory, and has {}",
                              FormatBytes(stride_bytes), FormatBytes(staging_bytes)));
  }
  KVRUN_RETURN_IF_ERROR(file->Reserve(file_bytes));
  std::unique_ptr<GroupStore> store(new GroupStore(std::move(file), shape, usable_bytes));
  store->staging_.reset(new (kStagingAlignment, std::nothrow) std::byte[usable_bytes]);
  store->checksums_.reset(new (std::nothrow) uint32_t[NumRecords(shape)]());
  if (store->staging_ == nullptr || store->checksums_ == nullptr) {
    return Status(StatusCode::kOutOfMemory,
                  fmt::format("there is not enough memory for the KV store, which needs {}",
                              FormatBytes(MemoryBytes(shape, staging_bytes, store->mode()))));
  }
  const iovec region{store->staging_.get(), usable_bytes};
  store->file_->RegisterMemory({&region, 1});
  return store;
}

GroupStore::GroupStore(std::unique_ptr<BlockFile> file, const GroupStoreShape& shape, uint64_t staging_bytes)
    : shape_(shape),
      stride_bytes_(StrideBytes(shape, file->mode())),
      staged_groups_(StagedGroups(staging_bytes, stride_bytes_)),
      ring_(staging_bytes, 2 * file->mode().queue_depth),
      requests_(file->mode().queue_depth),
      queued_(file->mode().queue_depth),
      completions_(file->mode().queue_depth),
      mode_(file->mode()),
      file_(std::move(file)) {}

uint64_t GroupStore::Place(const Run& run, uint32_t index) const {
  return (uint64_t{run.layer} * shape_.n_streams + run.stream) * shape_.n_groups + run.first_group + index;
}

uint32_t GroupStore::Checksum(const std::byte* record, uint64_t place) const {
  const auto sum = static_cast<uint32_t>(XXH3_64bits_withSeed(record, shape_.record_bytes, place));
  return sum == kNotWritten ? 1 : sum;
}

std::byte* GroupStore::Staged(const Request& request, uint32_t index) const {
  return staging_.get() + request.part.offset + index * stride_bytes_;
}

Status GroupStore::CheckRun(const Run& run, const char* what) const {
  if (run.layer < shape_.n_layers && run.stream < shape_.n_streams && run.first_group <= shape_.n_groups &&
      run.n_groups <= shape_.n_groups - run.first_group) {
    return Status::Ok();
  }
  return {StatusCode::kInvalidArgument,
          fmt::format(
              "cannot {} {} groups of layer {}, stream {} from group {} on: the KV store has {} layers, {} "
              "streams and {} groups",
              what, run.n_groups, run.layer, run.stream, run.first_group, shape_.n_layers, shape_.n_streams,
              shape_.n_groups)};
}

void GroupStore::Forget(const Run& run) {
  std::fill_n(checksums_.get() + Place(run, 0), run.n_groups, kNotWritten);
}

Status GroupStore::Truncate(uint32_t stream, uint32_t n_groups) {
  n_groups = std::min(n_groups, shape_.n_groups);
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    const Run run{layer, stream, n_groups, shape_.n_groups - n_groups};
    KVRUN_RETURN_IF_ERROR(CheckRun(run, "truncate"));
    Forget(run);
  }
  return Status::Ok();
}

GroupStore::Request* GroupStore::FreeRequest() {
  const auto found = std::find_if(requests_.begin(), requests_.end(),
                                  [](const Request& request) { return !request.in_flight; });
  return found == requests_.end() ? nullptr : &*found;
}

void GroupStore::Queue(Request& request, uint64_t first_place) {
  IoRequest& queued = queued_[n_queued_++];
  queued.kind = request.kind;
  queued.offset = first_place * stride_bytes_;
  queued.segments = std::span(request.segments, request.n_segments);
  queued.tag = static_cast<uint64_t>(&request - requests_.data());
  uint64_t bytes = 0;
  for (const iovec& segment : queued.segments) bytes += segment.iov_len;
  const bool reads = request.kind == IoKind::kRead;
  (reads ? stats_.reads : stats_.writes) += 1;
  (reads ? stats_.read_bytes : stats_.written_bytes) += bytes;
}

Status GroupStore::Poll(uint32_t wait_for) {
  KVRUN_RETURN_IF_ERROR(file_error_);
  auto taken = file_->Submit(std::span(queued_).first(n_queued_));
  if (taken.ok() && *taken != n_queued_) {
    taken = Status(StatusCode::kInternal, "the KV store's file takes fewer requests than it says");
  }
  if (!taken.ok()) return file_error_ = taken.status();
  n_queued_ = 0;
  const auto n_done = file_->Complete(completions_, wait_for);
  if (!n_done.ok()) return file_error_ = n_done.status();
  for (size_t i = 0; i < *n_done; ++i) {
    Request& request = requests_[completions_[i].tag];
    if (request.kind == IoKind::kWrite)
      OnWritten(request, completions_[i].error_number);
    else
      OnRead(request, completions_[i].error_number);
  }
  return Status::Ok();
}

void GroupStore::Release(Request& request) {
  if (request.staged) ring_.Release(request.part.id);
  request.in_flight = false;
  --(request.kind == IoKind::kRead ? n_reads_ : n_writes_);
}

Status GroupStore::TakeWriteError() { return std::exchange(write_error_, Status::Ok()); }

}  // namespace kvrun
