#include "runtime/store/group_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/saturating.h"
#include "platform/base/units.h"

namespace kvrun {
namespace {

constexpr uint64_t kMaxRunBytes = kMiB;        // more per request is not faster, and keeps the queue short
constexpr uint64_t kMinRunBytes = 256 * kKiB;  // of writes, where the staging allows

uint32_t StagedGroups(uint64_t staging_bytes, uint64_t stride_bytes) {
  const uint64_t wanted = std::clamp(staging_bytes / 2, kMinRunBytes, kMaxRunBytes);
  const uint64_t n = std::min(CeilDiv(wanted, stride_bytes), staging_bytes / stride_bytes);
  return static_cast<uint32_t>(n);
}

}  // namespace

uint64_t GroupStore::StrideBytes(const GroupStoreShape& shape, const IoMode& mode) {
  return RoundUp<uint64_t>(shape.record_bytes, mode.alignment_bytes);
}

uint64_t GroupStore::NumRecords(const GroupStoreShape& shape) {
  return SaturatingProduct({shape.n_layers, shape.n_streams, shape.n_groups});
}

uint32_t GroupStore::LaneGroups(const GroupStoreShape& shape) {
  return std::max(shape.lane_groups, shape.n_groups);
}

uint64_t GroupStore::FileBytes(const GroupStoreShape& shape, const IoMode& mode) {
  return SaturatingProduct({shape.n_layers, shape.n_streams, LaneGroups(shape), StrideBytes(shape, mode)});
}

uint64_t GroupStore::MemoryBytes(const GroupStoreShape& shape, uint64_t staging_bytes, const IoMode& mode) {
  return SaturatingSum({sizeof(GroupStore) - sizeof(StagedFile),
                        SaturatingProduct({NumRecords(shape), sizeof(uint32_t)}),
                        mode.queue_depth * sizeof(Request), StagedFile::MemoryBytes(staging_bytes, mode)});
}

Result<std::unique_ptr<GroupStore>> GroupStore::Create(std::unique_ptr<BlockFile> file,
                                                       const GroupStoreShape& shape, uint64_t staging_bytes) {
  const uint64_t file_bytes = FileBytes(shape, file->mode());
  if (file_bytes == 0 || file_bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a KV store cannot have {} layers, {} streams and {} groups of {} bytes",
                              shape.n_layers, shape.n_streams, shape.n_groups, shape.record_bytes));
  }
  const uint64_t usable_bytes = StagedFile::UsableStagingBytes(staging_bytes, file->mode());
  const uint64_t stride_bytes = StrideBytes(shape, file->mode());
  if (usable_bytes < stride_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the KV store needs at least {} of staging memory, and has {}",
                              FormatBytes(stride_bytes), FormatBytes(staging_bytes)));
  }
  KVRUN_ASSIGN_OR_RETURN(StagedFile staged, StagedFile::Create(std::move(file), file_bytes, usable_bytes));
  std::unique_ptr<GroupStore> store(new GroupStore(std::move(staged), shape, usable_bytes));
  store->checksums_.reset(new (std::nothrow) uint32_t[NumRecords(shape)]());
  if (store->checksums_ == nullptr) {
    return Status(StatusCode::kOutOfMemory,
                  fmt::format("there is not enough memory for the KV store, which needs {}",
                              FormatBytes(MemoryBytes(shape, staging_bytes, store->mode()))));
  }
  return store;
}

GroupStore::GroupStore(StagedFile file, const GroupStoreShape& shape, uint64_t staging_bytes)
    : shape_(shape),
      stride_bytes_(StrideBytes(shape, file.mode())),
      staged_groups_(StagedGroups(staging_bytes, stride_bytes_)),
      requests_(file.queue_depth()),
      mode_(file.mode()),
      file_(std::move(file)) {}

uint64_t GroupStore::Place(const Run& run, uint32_t index) const {
  const uint64_t lane = uint64_t{run.layer} * shape_.n_streams + run.stream;
  return lane * LaneGroups(shape_) + run.first_group + index;
}

std::span<uint32_t> GroupStore::ChecksumsOf(uint32_t layer, uint32_t stream) const {
  const uint64_t lane = uint64_t{layer} * shape_.n_streams + stream;
  return {checksums_.get() + lane * shape_.n_groups, shape_.n_groups};
}

uint32_t GroupStore::Checksum(const std::byte* record, uint64_t place) const {
  return ChecksumOf({record, shape_.record_bytes}, place);
}

std::byte* GroupStore::Staged(const Request& request, uint32_t index) const {
  return file_.Staged(*request.io) + index * stride_bytes_;
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
  const std::span<uint32_t> checksums =
      ChecksumsOf(run.layer, run.stream).subspan(run.first_group, run.n_groups);
  std::fill(checksums.begin(), checksums.end(), kNotWritten);
}

Status GroupStore::Truncate(uint32_t stream, uint32_t n_groups) {
  n_groups = std::min(n_groups, shape_.n_groups);
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    const Run run{layer, stream, n_groups, shape_.n_groups - n_groups};
    KVRUN_RETURN_IF_ERROR(CheckRun(run, "truncate"));
    const uint32_t end = NumWritten(layer, stream);
    if (end > n_groups) file_.Discard(Place(run, 0) * stride_bytes_, (end - n_groups) * stride_bytes_);
    Forget(run);
  }
  return Status::Ok();
}

uint32_t GroupStore::NumWritten(uint32_t layer, uint32_t stream) const {
  const std::span<const uint32_t> checksums = ChecksumsOf(layer, stream);
  const auto is_written = [](uint32_t checksum) { return checksum != kNotWritten; };
  return static_cast<uint32_t>(std::find_if(checksums.rbegin(), checksums.rend(), is_written).base() -
                               checksums.begin());
}

Status GroupStore::CheckWritten(uint32_t stream, uint32_t n_groups) const {
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    const std::span<const uint32_t> of =
        ChecksumsOf(layer, stream).first(std::min(n_groups, shape_.n_groups));
    const auto lost = std::find(of.begin(), of.end(), kNotWritten);
    if (lost == of.end()) continue;
    return {
        StatusCode::kIo,
        fmt::format("group {} of layer {}, stream {} could not be written to flash, and the sequence has to "
                    "be computed again",
                    lost - of.begin(), layer, stream)};
  }
  return Status::Ok();
}

Status GroupStore::VisitState(StateVisitor& visitor, uint32_t n_lasting) {
  enum Item : uint16_t { kLasting, kChecksums };
  KVRUN_CHECK(file_.n_writes() == 0);
  uint32_t n_lasted = n_lasting;
  KVRUN_RETURN_IF_ERROR(visitor.Value({StatePart::kStore, kLasting}, &n_lasted));
  std::vector<uint32_t> written;
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    for (uint32_t stream = 0; stream < shape_.n_streams; ++stream) {
      const std::span<uint32_t> checksums = ChecksumsOf(layer, stream);
      const auto end = checksums.begin() + NumWritten(layer, stream);
      written.assign(checksums.begin(), end);
      KVRUN_RETURN_IF_ERROR(
          visitor.Vector({StatePart::kStore, kChecksums, layer, stream}, &written, LaneGroups(shape_)));
      if (!visitor.is_loading()) continue;
      if (n_lasted != n_lasting) written.resize(std::min<size_t>(written.size(), n_lasted));
      if (written.size() > checksums.size()) {
        return {StatusCode::kInvalidArgument,
                fmt::format("{} groups of layer {}, stream {} were kept, and there is room for {}",
                            written.size(), layer, stream, checksums.size())};
      }
      std::copy(written.begin(), written.end(), checksums.begin());
    }
  }
  return Status::Ok();
}

void GroupStore::Queue(Request& request, uint32_t first) {
  file_.Queue(*request.io, Place(request.run, first) * stride_bytes_, stats_);
}

Status GroupStore::Poll(uint32_t wait_for) {
  KVRUN_ASSIGN_OR_RETURN(const std::span<const IoCompletion> done, file_.Poll(wait_for));
  for (const IoCompletion& completion : done) {
    Request& request = requests_[completion.tag];
    if (request.io->kind == IoKind::kWrite)
      OnWritten(request, completion.error_number);
    else
      OnRead(request, ErrorOfRead(completion.error_number));
  }
  return Status::Ok();
}

Status GroupStore::TakeWriteError() { return std::exchange(write_error_, Status::Ok()); }

}  // namespace kvrun
