// ClusterStore: where clusters lie, and records to flash.
#include "runtime/store/cluster_store.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/saturating.h"
#include "platform/base/units.h"

namespace kvrun {
namespace {

constexpr uint64_t kHashStateBytes = kKiB;  // at most: the library does not say

uint64_t HalvesPerStream(const ClusterStoreShape& shape) {
  const uint64_t n = shape.n_clusters == 0 ? 0 : std::max(shape.n_clusters, shape.lane_clusters);
  return shape.layout == ClusterLayout::kDualHead ? RoundUp<uint64_t>(n, 2) : n;
}

// More per request is not faster, and keeps the queue short.
uint64_t LongestReadBytes(uint64_t staging_bytes) {
  return std::min(staging_bytes, std::clamp(staging_bytes / 2, 256 * kKiB, kMiB));
}

}  // namespace

uint64_t ClusterStore::HalfBytes(const ClusterStoreShape& shape, const IoMode& mode) {
  return RoundUp<uint64_t>(uint64_t{shape.max_records} * shape.record_bytes, mode.alignment_bytes);
}

uint32_t ClusterStore::Lane(const ClusterStoreShape& shape) {
  return std::max(shape.n_clusters, shape.lane_clusters);
}

uint64_t ClusterStore::NumClusters(const ClusterStoreShape& shape) {
  return SaturatingProduct({shape.n_layers, shape.n_streams, Lane(shape)});
}

uint64_t ClusterStore::FileBytes(const ClusterStoreShape& shape, const IoMode& mode) {
  return SaturatingProduct({shape.n_layers, shape.n_streams, HalvesPerStream(shape), HalfBytes(shape, mode)});
}

uint64_t ClusterStore::MemoryBytes(const ClusterStoreShape& shape, uint64_t staging_bytes,
                                   const IoMode& mode) {
  return SaturatingSum({sizeof(ClusterStore) - sizeof(StagedFile), kHashStateBytes,
                        SaturatingProduct({NumClusters(shape), sizeof(Entry)}),
                        SaturatingProduct({shape.n_streams, shape.n_clusters, sizeof(uint32_t)}),
                        mode.queue_depth * sizeof(Request), StagedFile::MemoryBytes(staging_bytes, mode)});
}

Result<std::unique_ptr<ClusterStore>> ClusterStore::Create(std::unique_ptr<BlockFile> file,
                                                           const ClusterStoreShape& shape,
                                                           uint64_t staging_bytes) {
  const uint64_t file_bytes = FileBytes(shape, file->mode());
  const uint64_t n_per_layer = uint64_t{shape.n_streams} * shape.n_clusters;
  if (file_bytes == 0 || file_bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
      n_per_layer > UINT32_MAX) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a KV store cannot have {} layers, {} streams and {} clusters of up to {} "
                              "records of {} bytes",
                              shape.n_layers, shape.n_streams, shape.n_clusters, shape.max_records,
                              shape.record_bytes));
  }
  const uint64_t usable_bytes = StagedFile::UsableStagingBytes(staging_bytes, file->mode());
  const uint64_t half_bytes = HalfBytes(shape, file->mode());
  if (usable_bytes < half_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the KV store needs at least {} of staging memory, a cluster's, and has {}",
                              FormatBytes(half_bytes), FormatBytes(staging_bytes)));
  }
  KVRUN_ASSIGN_OR_RETURN(StagedFile staged, StagedFile::Create(std::move(file), file_bytes, usable_bytes));
  std::unique_ptr<ClusterStore> store(new ClusterStore(std::move(staged), shape, usable_bytes));
  store->entries_.reset(new (std::nothrow) Entry[NumClusters(shape)]());
  store->order_.reset(new (std::nothrow) uint32_t[n_per_layer]);
  store->hash_state_.reset(XXH3_createState());
  if (store->entries_ == nullptr || store->order_ == nullptr || store->hash_state_ == nullptr) {
    return Status(StatusCode::kOutOfMemory,
                  fmt::format("there is not enough memory for the KV store, which needs {}",
                              FormatBytes(MemoryBytes(shape, staging_bytes, store->mode()))));
  }
  return store;
}

ClusterStore::ClusterStore(StagedFile file, const ClusterStoreShape& shape, uint64_t staging_bytes)
    : shape_(shape),
      lane_(Lane(shape)),
      half_bytes_(HalfBytes(shape, file.mode())),
      halves_per_stream_(HalvesPerStream(shape)),
      longest_read_bytes_(LongestReadBytes(staging_bytes)),
      requests_(file.queue_depth()),
      file_(std::move(file)) {}

void ClusterStore::FreeHashState::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

uint64_t ClusterStore::Place(uint32_t layer, uint32_t stream, uint32_t cluster) const {
  return (uint64_t{layer} * shape_.n_streams + stream) * lane_ + cluster;
}

bool ClusterStore::GrowsDown(uint64_t place) const {
  return shape_.layout == ClusterLayout::kDualHead && place % lane_ % 2 == 1;
}

ClusterStore::Extent ClusterStore::At(uint64_t place, uint64_t near, uint64_t far) const {
  const uint64_t half = place / lane_ * halves_per_stream_ + place % lane_;
  const uint64_t begin = half * half_bytes_;
  return {GrowsDown(place) ? begin + half_bytes_ - far : begin + near, far - near};
}

ClusterStore::Extent ClusterStore::Bytes(uint64_t place) const {
  return At(place, 0, uint64_t{entries_[place].n_records} * shape_.record_bytes);
}

ClusterStore::Extent ClusterStore::Pages(uint64_t place) const {
  const uint64_t bytes = uint64_t{entries_[place].n_records} * shape_.record_bytes;
  return At(place, 0, RoundUp<uint64_t>(bytes, mode().alignment_bytes));
}

std::string ClusterStore::Named(uint64_t first_place, uint64_t last_place) const {
  const uint64_t layer = first_place / lane_ / shape_.n_streams;
  const auto stream = [&](uint64_t place) { return place / lane_ % shape_.n_streams; };
  const auto cluster = [&](uint64_t place) { return place % lane_; };
  const std::string begin = fmt::format("layer {}, stream {}", layer, stream(first_place));
  if (first_place == last_place) return fmt::format("{}, cluster {}", begin, cluster(first_place));
  if (stream(first_place) == stream(last_place)) {
    return fmt::format("{}, clusters {} to {}", begin, cluster(first_place), cluster(last_place));
  }
  return fmt::format("{}, cluster {} to stream {}, cluster {}", begin, cluster(first_place),
                     stream(last_place), cluster(last_place));
}

bool ClusterStore::IsThere(uint32_t layer, uint32_t stream, uint32_t cluster) const {
  return layer < shape_.n_layers && stream < shape_.n_streams && cluster < shape_.n_clusters;
}

Status ClusterStore::CheckIds(uint32_t layer, uint32_t stream, uint32_t cluster, const char* what) const {
  if (IsThere(layer, stream, cluster)) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format("cannot {} layer {}, stream {}, cluster {}: the KV store has {} layers, {} streams and "
                      "{} clusters",
                      what, layer, stream, cluster, shape_.n_layers, shape_.n_streams, shape_.n_clusters)};
}

void ClusterStore::Forget(uint32_t layer, uint32_t stream, uint32_t cluster) {
  if (!IsThere(layer, stream, cluster)) return;
  const uint64_t place = Place(layer, stream, cluster);
  if (entries_[place].n_records == 0) return;
  entries_[place] = {};
  const Extent half = At(place, 0, half_bytes_);
  file_.Discard(half.offset, half.bytes);
}

uint64_t ClusterStore::CountRuns(uint32_t layer, uint32_t stream, std::span<const uint32_t> clusters) const {
  uint64_t n_runs = 0;
  uint64_t end = UINT64_MAX;  // of the bytes before
  for (const uint32_t cluster : clusters) {
    if (!IsThere(layer, stream, cluster)) continue;
    const Extent bytes = Bytes(Place(layer, stream, cluster));
    n_runs += bytes.offset != end ? 1 : 0;
    end = bytes.end();
  }
  return n_runs;
}

Status ClusterStore::Poll(uint32_t wait_for) {
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

Status ClusterStore::TakeWriteError() { return std::exchange(write_error_, Status::Ok()); }

Status ClusterStore::Write(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t first_changed,
                           std::span<const std::byte> records) {
  KVRUN_RETURN_IF_ERROR(CheckIds(layer, stream, cluster, "write"));
  const size_t n_records = records.size() / shape_.record_bytes;
  if (records.size() % shape_.record_bytes != 0 || n_records == 0 || n_records > shape_.max_records) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} bytes are not 1 to {} records of {} bytes", records.size(), shape_.max_records,
                        shape_.record_bytes)};
  }
  if (first_changed > n_records) {
    return {StatusCode::kInvalidArgument,
            fmt::format("records from {} on cannot have changed: there are {}", first_changed, n_records)};
  }
  const uint64_t place = Place(layer, stream, cluster);
  Status status = WriteChanged(place, first_changed, records);
  if (!status.ok()) entries_[place] = {};
  return status;
}

Status ClusterStore::WriteChanged(uint64_t place, uint32_t first_changed,
                                  std::span<const std::byte> records) {
  // Two writes to one place have no order: the older one has to end first.
  KVRUN_RETURN_IF_ERROR(WaitForWrite(place));
  KVRUN_RETURN_IF_ERROR(Poll(0));
  KVRUN_RETURN_IF_ERROR(TakeWriteError());
  Entry& entry = entries_[place];
  // What was never there cannot be what it was. Here and not before: the write that ended may have failed.
  first_changed = std::min(first_changed, entry.n_records);
  const uint64_t alignment = mode().alignment_bytes;
  const uint64_t near = uint64_t{first_changed} * shape_.record_bytes / alignment * alignment;
  const uint64_t far = RoundUp<uint64_t>(records.size(), alignment);
  const Entry written{ChecksumOf(records, place),
                      static_cast<uint32_t>(records.size() / shape_.record_bytes)};
  if (uint64_t{first_changed} * shape_.record_bytes == records.size()) {
    entry = written;
    return Status::Ok();
  }
  const Extent pages = At(place, near, far);
  StagedFile::Request* io = nullptr;
  while ((io = file_.Take(IoKind::kWrite, pages.bytes)) == nullptr) KVRUN_RETURN_IF_ERROR(Poll(1));
  Request& request = requests_[io->index];
  request = {};
  request.io = io;
  request.place = place;
  CopyToStaging(place, near, records, pages, file_.Staged(*io));
  io->segments[0] = {file_.Staged(*io), pages.bytes};
  io->n_segments = 1;
  file_.Queue(*io, pages.offset, stats_);
  stats_.pages_written += pages.flash_pages();
  entry = written;
  return Poll(0);
}

void ClusterStore::CopyToStaging(uint64_t place, uint64_t near, std::span<const std::byte> records,
                                 const Extent& pages, std::byte* staged) const {
  const uint64_t padding_bytes = near + pages.bytes - records.size();  // beyond the last record
  if (!GrowsDown(place)) {
    std::memcpy(staged, records.data() + near, records.size() - near);
    std::memset(staged + records.size() - near, 0, padding_bytes);
    return;
  }
  // The last record lies lowest. Of the first, what lies nearer than `near` is left out.
  std::memset(staged, 0, padding_bytes);
  const uint64_t record_bytes = shape_.record_bytes;
  for (uint64_t end = records.size(); end > near; end -= record_bytes) {
    const uint64_t begin = end - record_bytes;
    std::memcpy(staged + near + pages.bytes - end, records.data() + begin, end - std::max(begin, near));
  }
}

Status ClusterStore::WaitForWrite(uint64_t place) {
  const auto writes = [place](const Request& request) {
    return request.io != nullptr && request.io->in_flight && request.io->kind == IoKind::kWrite &&
           request.place == place;
  };
  while (file_.n_writes() > 0 && std::any_of(requests_.begin(), requests_.end(), writes)) {
    KVRUN_RETURN_IF_ERROR(Poll(1));
  }
  return Status::Ok();
}

void ClusterStore::OnWritten(Request& request, int error_number) {
  file_.Release(*request.io);
  if (error_number == 0) return;
  entries_[request.place] = {};
  if (!write_error_.ok()) return;  // the first says why
  write_error_ = CannotBeWritten(error_number, Named(request.place, request.place) + " of the KV cache");
}

Status ClusterStore::Flush() {
  while (file_.n_writes() > 0) KVRUN_RETURN_IF_ERROR(Poll(1));
  KVRUN_RETURN_IF_ERROR(file_.error());
  return TakeWriteError();
}

Status ClusterStore::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kLayout = 10, kClusters };  // beside GroupStore's
  KVRUN_CHECK(file_.n_writes() == 0 && file_.n_reads() == 0);
  const std::array<uint64_t, 3> layout = {lane_, half_bytes_, static_cast<uint64_t>(shape_.layout)};
  std::array<uint64_t, 3> lies = layout;
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kStore, kLayout}, std::span<uint64_t>(lies)));
  if (lies != layout) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format("clusters that were kept lie otherwise: {} halves of {} bytes for a stream, where there "
                    "would be {} of {}",
                    lies[0], lies[1], layout[0], layout[1])};
  }
  std::vector<Entry> written;
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    for (uint32_t stream = 0; stream < shape_.n_streams; ++stream) {
      const std::span<Entry> entries = EntriesOf(layer, stream);
      const auto is_written = [](const Entry& entry) { return entry.n_records > 0; };
      written.assign(entries.begin(), std::find_if(entries.rbegin(), entries.rend(), is_written).base());
      KVRUN_RETURN_IF_ERROR(visitor.Vector({StatePart::kStore, kClusters, layer, stream}, &written, lane_));
      if (visitor.is_loading()) KVRUN_RETURN_IF_ERROR(TakeEntries(written, layer, stream));
    }
  }
  return Status::Ok();
}

Status ClusterStore::TakeEntries(std::span<const Entry> loaded, uint32_t layer, uint32_t stream) {
  if (loaded.size() > shape_.n_clusters) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} clusters of layer {}, stream {} were kept, and there is room for {}",
                        loaded.size(), layer, stream, shape_.n_clusters)};
  }
  for (const Entry& entry : loaded) {
    if (entry.n_records <= shape_.max_records && (entry.n_records > 0) == (entry.checksum != kNotWritten)) {
      continue;
    }
    return {StatusCode::kCorrupt,
            fmt::format("clusters of layer {}, stream {} on flash contradict themselves", layer, stream)};
  }
  std::copy(loaded.begin(), loaded.end(), EntriesOf(layer, stream).begin());
  return Status::Ok();
}

}  // namespace kvrun
