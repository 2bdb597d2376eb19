// GroupStore: records from flash, merged, checked, and handed out.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "platform/base/units.h"
#include "runtime/store/group_store.h"

namespace kvrun {
namespace {

constexpr uint64_t kMaxReadBytes = kMiB;  // of one request, where records are not longer

}  // namespace

// What is to be read has been written, and is there.
Status GroupStore::PrepareFetch(uint32_t layer, std::span<const GroupFetch> fetches) {
  for (std::span<const GroupFetch> left = fetches; !left.empty();) {
    const uint32_t stream = left[0].stream;
    const auto end = std::find_if(left.begin(), left.end(),
                                  [stream](const GroupFetch& fetch) { return fetch.stream != stream; });
    const auto [first, last] = std::minmax_element(
        left.begin(), end, [](const GroupFetch& a, const GroupFetch& b) { return a.group < b.group; });
    // As 64 bits: what comes from outside may be anything.
    const uint64_t n_groups = uint64_t{last->group} - first->group + 1;
    const Run all{layer, stream, first->group,
                  static_cast<uint32_t>(std::min<uint64_t>(n_groups, UINT32_MAX))};
    KVRUN_RETURN_IF_ERROR(CheckRun(all, "fetch"));
    KVRUN_RETURN_IF_ERROR(WaitForWrites(all));
    left = left.subspan(static_cast<size_t>(end - left.begin()));
  }
  KVRUN_RETURN_IF_ERROR(file_.error());
  KVRUN_RETURN_IF_ERROR(TakeWriteError());
  return CheckFetch(layer, fetches);
}

Status GroupStore::Fetch(uint32_t layer, std::span<const GroupFetch> fetches) {
  const auto begin = std::chrono::steady_clock::now();
  KVRUN_RETURN_IF_ERROR(PrepareFetch(layer, fetches));
  Status status = FetchAll(layer, fetches);
  if (status.ok() && memory_refused_) {
    // Some drivers' memory cannot be reached by direct I/O: what came by other ways is right.
    reads_in_place_ = false;
    mode_.notes.emplace_back(
        "the device's memory takes no direct reads: what is read goes through a buffer and is copied");
    status = FetchAll(layer, fetches);
  }
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  stats_.read_wait_ms += elapsed.count();
  return status;
}

Status GroupStore::FetchAll(uint32_t layer, std::span<const GroupFetch> fetches) {
  read_error_ = Status::Ok();
  memory_refused_ = false;
  while (!fetches.empty() || file_.n_reads() > 0) {
    if (!read_error_.ok() || memory_refused_)
      fetches = {};  // those in flight are waited for: the memory is the caller's
    while (!fetches.empty()) {
      const Run run{layer, fetches[0].stream, fetches[0].group, RunLength(fetches)};
      if (!StartRead(run, fetches.data())) break;
      fetches = fetches.subspan(run.n_groups);
    }
    // All, where nothing is left to start; otherwise half of them, so that the queue stays filled. Each time
    // this thread wakes takes time from a device that computes on the same cores.
    const uint32_t n_in_flight = file_.n_reads() + file_.n_writes();
    KVRUN_RETURN_IF_ERROR(Poll(fetches.empty() ? file_.n_reads() : std::max(n_in_flight / 2, 1U)));
  }
  return read_error_;
}

Status GroupStore::CheckFetch(uint32_t layer, std::span<const GroupFetch> fetches) const {
  for (const GroupFetch& fetch : fetches) {
    if (ChecksumsOf(layer, fetch.stream)[fetch.group] != kNotWritten) continue;
    return {
        StatusCode::kIo,
        fmt::format("layer {}, stream {}, group {} of the KV cache is not on flash: the sequence has to be "
                    "computed again",
                    layer, fetch.stream, fetch.group)};
  }
  return Status::Ok();
}

bool GroupStore::ReadsInPlace(const GroupFetch& fetch) const {
  return reads_in_place_ && stride_bytes_ == shape_.record_bytes &&
         reinterpret_cast<uintptr_t>(fetch.memory) % mode().alignment_bytes == 0;
}

uint32_t GroupStore::RunLength(std::span<const GroupFetch> fetches) const {
  const bool in_place = ReadsInPlace(fetches[0]);
  const uint64_t most = in_place ? std::max<uint64_t>(kMaxReadBytes / stride_bytes_, 1) : staged_groups_;
  uint32_t n_segments = 1;
  uint32_t n = 1;
  for (; n < most && n < fetches.size(); ++n) {
    const GroupFetch& fetch = fetches[n];
    const GroupFetch& before = fetches[n - 1];
    if (fetch.stream != before.stream || uint64_t{fetch.group} != uint64_t{before.group} + 1) break;
    if (ReadsInPlace(fetch) != in_place) break;
    if (in_place && fetch.memory != before.memory + shape_.record_bytes && ++n_segments > kMaxIoSegments)
      break;
  }
  return n;
}

bool GroupStore::StartRead(const Run& run, const GroupFetch* fetches) {
  const bool staged = !ReadsInPlace(fetches[0]);
  StagedFile::Request* const io = file_.Take(IoKind::kRead, staged ? run.n_groups * stride_bytes_ : 0);
  if (io == nullptr) return false;
  Request& request = requests_[io->index];
  request = {io, run, fetches, {}};
  SetSegments(request, 0, run.n_groups);
  Queue(request, 0);
  return true;
}

void GroupStore::SetSegments(Request& request, uint32_t first, uint32_t n) {
  StagedFile::Request& io = *request.io;
  io.n_segments = 1;
  if (io.staged) {
    io.segments[0] = {Staged(request, first), n * stride_bytes_};
    return;
  }
  io.segments[0] = {request.fetches[first].memory, shape_.record_bytes};
  for (uint32_t i = first + 1; i < first + n; ++i) {
    std::byte* const memory = request.fetches[i].memory;
    iovec& segment = io.segments[io.n_segments - 1];
    if (static_cast<std::byte*>(segment.iov_base) + segment.iov_len == memory) {
      segment.iov_len += shape_.record_bytes;
    } else {
      io.segments[io.n_segments++] = {memory, shape_.record_bytes};
    }
  }
}

// Checked where the disk has put it; where that is the staging, it is copied while the processor's cache
// still holds it.
bool GroupStore::Accept(const Request& request, uint32_t index) {
  const uint64_t place = Place(request.run, index);
  std::byte* const memory = request.fetches[index].memory;
  const std::byte* const record = request.io->staged ? Staged(request, index) : memory;
  if (Checksum(record, place) != ChecksumAt(request.run, index)) return false;
  if (request.io->staged) std::memcpy(memory, record, shape_.record_bytes);
  ++stats_.records_read;
  return true;
}

void GroupStore::OnRead(Request& request, int error_number) {
  const Run& run = request.run;
  if (error_number == EFAULT && !request.io->staged) {
    memory_refused_ = true;
    file_.Release(*request.io);
    return;
  }
  const auto next = request.read.OnRead(error_number == 0, run.n_groups,
                                        [&](uint32_t index) { return Accept(request, index); });
  const uint32_t first = request.read.first();
  if (next == CheckedRead::Next::kReadAgain) {  // the record, not the run
    ++stats_.records_read_again;
    SetSegments(request, first, 1);
    Queue(request, first);
    return;
  }
  if (next == CheckedRead::Next::kGiveUp && read_error_.ok()) {
    const std::string named = fmt::format("layer {}, stream {}, group", run.layer, run.stream);
    read_error_ =
        error_number != 0
            ? CannotBeRead(error_number,
                           fmt::format("{}s {} to {} of the KV cache", named, run.first_group + first,
                                       run.first_group + request.read.last(run.n_groups)))
            : CameBackChanged(fmt::format("{} {} of the KV cache", named, run.first_group + first),
                              "sequence");
  }
  file_.Release(*request.io);
}

}  // namespace kvrun
