// ClusterStore: clusters from flash, merged, checked, and handed out.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "platform/base/units.h"
#include "runtime/store/cluster_store.h"

namespace kvrun {

Status ClusterStore::Fetch(uint32_t layer, std::span<const ClusterFetch> fetches) {
  const auto begin = std::chrono::steady_clock::now();
  KVRUN_RETURN_IF_ERROR(PrepareFetch(layer, fetches));
  Status status = FetchAll();
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  stats_.read_wait_ms += elapsed.count();
  return status;
}

// What is to be read has been written, and is there.
Status ClusterStore::PrepareFetch(uint32_t layer, std::span<const ClusterFetch> fetches) {
  KVRUN_RETURN_IF_ERROR(CheckFetches(layer, fetches));
  for (const ClusterFetch& fetch : fetches) {
    KVRUN_RETURN_IF_ERROR(WaitForWrite(Place(layer, fetch.stream, fetch.cluster)));
  }
  KVRUN_RETURN_IF_ERROR(file_.error());
  KVRUN_RETURN_IF_ERROR(TakeWriteError());
  KVRUN_RETURN_IF_ERROR(CheckWritten(layer, fetches));
  fetches_ = fetches;
  fetched_layer_ = layer;
  KVRUN_RETURN_IF_ERROR(SortFetches());
  CountRuns();
  return Status::Ok();
}

Status ClusterStore::CheckFetches(uint32_t layer, std::span<const ClusterFetch> fetches) const {
  if (fetches.size() > uint64_t{shape_.n_streams} * shape_.n_clusters) {
    return {StatusCode::kInvalidArgument,
            fmt::format("cannot fetch {} clusters of layer {} at once: the KV store has {} streams and {} "
                        "clusters",
                        fetches.size(), layer, shape_.n_streams, shape_.n_clusters)};
  }
  for (const ClusterFetch& fetch : fetches) {
    KVRUN_RETURN_IF_ERROR(CheckIds(layer, fetch.stream, fetch.cluster, "fetch"));
    if (fetch.memory.size() == fetch.n_records) continue;
    return {
        StatusCode::kInvalidArgument,
        fmt::format("cannot fetch layer {}, stream {}, cluster {}: there are {} records and memory for {}",
                    layer, fetch.stream, fetch.cluster, fetch.n_records, fetch.memory.size())};
  }
  return Status::Ok();
}

Status ClusterStore::CheckWritten(uint32_t layer, std::span<const ClusterFetch> fetches) const {
  for (const ClusterFetch& fetch : fetches) {
    const uint64_t place = Place(layer, fetch.stream, fetch.cluster);
    const Entry& entry = entries_[place];
    if (entry.checksum == kNotWritten) {
      return {StatusCode::kIo,
              fmt::format("{} of the KV cache is not on flash: the sequence has to be computed again",
                          Named(place, place))};
    }
    if (entry.n_records == fetch.n_records) continue;
    return {StatusCode::kInvalidArgument, fmt::format("cannot fetch {} records of {}: it was written with {}",
                                                      fetch.n_records, Named(place, place), entry.n_records)};
  }
  return Status::Ok();
}

// Bytes on flash are in the order of places, whatever the layout.
Status ClusterStore::SortFetches() {
  const std::span<uint32_t> order(order_.get(), fetches_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
    const ClusterFetch& x = fetches_[a];
    const ClusterFetch& y = fetches_[b];
    return x.stream != y.stream ? x.stream < y.stream : x.cluster < y.cluster;
  });
  for (uint32_t i = 1; i < order.size(); ++i) {
    if (FetchedPlace(i) != FetchedPlace(i - 1)) continue;
    return {StatusCode::kInvalidArgument,
            fmt::format("cannot fetch {} twice at once", Named(FetchedPlace(i), FetchedPlace(i)))};
  }
  return Status::Ok();
}

void ClusterStore::CountRuns() {
  uint64_t end = UINT64_MAX;  // of the bytes before
  for (uint32_t i = 0; i < fetches_.size(); ++i) {
    const Extent bytes = Bytes(FetchedPlace(i));
    if (bytes.offset != end) ++stats_.runs;
    end = bytes.end();
  }
}

uint64_t ClusterStore::FetchedPlace(uint32_t index) const {
  return Place(fetched_layer_, Fetched(index).stream, Fetched(index).cluster);
}

Status ClusterStore::FetchAll() {
  read_error_ = Status::Ok();
  auto n_left = static_cast<uint32_t>(fetches_.size());
  uint32_t first = 0;
  while (n_left > 0 || file_.n_reads() > 0) {
    if (!read_error_.ok()) n_left = 0;  // those in flight are waited for: the memory is the caller's
    while (n_left > 0) {
      Extent pages;
      const uint32_t n = RunLength(first, pages);
      if (!StartRead(first, n, pages)) break;
      first += n;
      n_left -= n;
    }
    // All, where nothing is left to start; otherwise half of them, so that the queue stays filled. Where
    // nothing could be started, something is in flight, if only writes, and gives its staging back.
    const uint32_t n_in_flight = file_.n_reads() + file_.n_writes();
    KVRUN_RETURN_IF_ERROR(Poll(n_left == 0 ? file_.n_reads() : std::max(n_in_flight / 2, 1U)));
  }
  return read_error_;
}

uint32_t ClusterStore::RunLength(uint32_t first, Extent& pages) const {
  pages = Pages(FetchedPlace(first));
  uint32_t n = 1;
  for (; first + n < fetches_.size(); ++n) {
    const Extent next = Pages(FetchedPlace(first + n));
    if (next.offset != pages.end() || pages.bytes + next.bytes > longest_read_bytes_) break;
    pages.bytes += next.bytes;
  }
  return n;
}

bool ClusterStore::StartRead(uint32_t first, uint32_t n, const Extent& pages) {
  StagedFile::Request* const io = file_.Take(IoKind::kRead, pages.bytes);
  if (io == nullptr) return false;
  Request& request = requests_[io->index];
  request = {};
  request.io = io;
  request.first = first;
  request.n = n;
  io->segments[0] = {file_.Staged(*io), pages.bytes};
  io->n_segments = 1;
  file_.Queue(*io, pages.offset, stats_);
  stats_.pages_read += pages.flash_pages();
  return true;
}

std::byte* ClusterStore::StagedPages(const Request& request, uint32_t index) const {
  const uint64_t begin = Pages(FetchedPlace(request.first)).offset;
  return file_.Staged(*request.io) + (Pages(FetchedPlace(request.first + index)).offset - begin);
}

const std::byte* ClusterStore::Record(uint64_t place, const std::byte* pages, uint32_t index) const {
  const uint64_t record_bytes = shape_.record_bytes;
  if (!GrowsDown(place)) return pages + index * record_bytes;
  return pages + Pages(place).bytes - (index + 1) * record_bytes;
}

uint32_t ClusterStore::Checksum(uint64_t place, const std::byte* pages) const {
  const uint32_t n_records = entries_[place].n_records;
  if (!GrowsDown(place)) return ChecksumOf({pages, uint64_t{n_records} * shape_.record_bytes}, place);
  XXH3_64bits_reset_withSeed(hash_state_.get(), place);
  for (uint32_t i = 0; i < n_records; ++i) {
    XXH3_64bits_update(hash_state_.get(), Record(place, pages, i), shape_.record_bytes);
  }
  return AsChecksum(XXH3_64bits_digest(hash_state_.get()));
}

bool ClusterStore::Accept(const Request& request, uint32_t index) {
  const ClusterFetch& fetch = Fetched(request.first + index);
  const uint64_t place = FetchedPlace(request.first + index);
  const std::byte* const pages = StagedPages(request, index);
  if (Checksum(place, pages) != entries_[place].checksum) return false;
  for (uint32_t i = 0; i < fetch.n_records; ++i) {
    if (fetch.memory[i] == nullptr) continue;
    std::memcpy(fetch.memory[i], Record(place, pages, i), shape_.record_bytes);
  }
  stats_.records_read += fetch.n_records;
  return true;
}

// The cluster, not the run.
void ClusterStore::ReadAgain(Request& request) {
  const uint32_t index = request.first + request.read.first();
  const Extent pages = Pages(FetchedPlace(index));
  stats_.records_read_again += Fetched(index).n_records;
  request.io->segments[0] = {StagedPages(request, request.read.first()), pages.bytes};
  file_.Queue(*request.io, pages.offset, stats_);
}

void ClusterStore::OnRead(Request& request, int error_number) {
  const auto next = request.read.OnRead(error_number == 0, request.n,
                                        [&](uint32_t index) { return Accept(request, index); });
  if (next == CheckedRead::Next::kReadAgain) return ReadAgain(request);
  if (next == CheckedRead::Next::kGiveUp && read_error_.ok()) {
    const std::string what = Named(FetchedPlace(request.first + request.read.first()),
                                   FetchedPlace(request.first + request.read.last(request.n))) +
                             " of the KV cache";
    read_error_ = error_number != 0 ? CannotBeRead(error_number, what) : CameBackChanged(what, "sequence");
  }
  file_.Release(*request.io);
}

}  // namespace kvrun
