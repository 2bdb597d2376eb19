#include "runtime/store/overlay_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/saturating.h"
#include "platform/base/units.h"
#include "runtime/store/parted_requests.h"

namespace kvrun {

// Two files as one: an offset says which of them, too.
class OverlayFile::BothFiles {
 public:
  enum Which : uint8_t { kBase, kOwn };
  static uint64_t OffsetIn(Which which, uint64_t offset) { return which == kOwn ? offset | kOwnBit : offset; }

  BothFiles(std::unique_ptr<BlockFile> base, std::unique_ptr<BlockFile> own, uint32_t queue_depth)
      : files_{std::move(base), std::move(own)} {
    for (std::vector<IoRequest>& queued : queued_) queued.reserve(queue_depth);
  }
  static uint64_t MemoryBytes(uint32_t queue_depth) { return 2 * queue_depth * sizeof(IoRequest); }

  BlockFile& file(Which which) { return *files_[which]; }
  const BlockFile& file(Which which) const { return *files_[which]; }
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (const std::unique_ptr<BlockFile>& file : files_) visit(*file);
  }

  // As BlockFile's. All are taken, where no more are in flight than there are places in either queue.
  Result<size_t> Submit(std::span<const IoRequest> requests) {
    for (std::vector<IoRequest>& queued : queued_) queued.clear();
    for (const IoRequest& request : requests) {
      const Which which = (request.offset & kOwnBit) != 0 ? kOwn : kBase;
      queued_[which].push_back(request);
      queued_[which].back().offset &= ~kOwnBit;
    }
    size_t n_taken = 0;
    for (const Which which : {kBase, kOwn}) {
      if (queued_[which].empty()) continue;
      KVRUN_ASSIGN_OR_RETURN(const size_t n, files_[which]->Submit(queued_[which]));
      n_in_flight_[which] += n;
      n_taken += n;
    }
    return n_taken;
  }
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) {
    const size_t wanted = std::min({at_least, completions.size(), n_in_flight_[kBase] + n_in_flight_[kOwn]});
    size_t n_done = 0;
    const auto take = [&](Which which, size_t wait_for) -> Status {
      if (n_in_flight_[which] == 0 || n_done == completions.size()) return Status::Ok();
      KVRUN_ASSIGN_OR_RETURN(const size_t n, files_[which]->Complete(completions.subspan(n_done), wait_for));
      n_in_flight_[which] -= n;
      n_done += n;
      return Status::Ok();
    };
    for (;;) {
      for (const Which which : {kBase, kOwn}) KVRUN_RETURN_IF_ERROR(take(which, 0));
      if (n_done >= wanted) return n_done;
      // Whichever it is: what is in flight ends.
      KVRUN_RETURN_IF_ERROR(take(n_in_flight_[kBase] > 0 ? kBase : kOwn, 1));
    }
  }

 private:
  static constexpr uint64_t kOwnBit = uint64_t{1} << 63;

  std::array<std::unique_ptr<BlockFile>, 2> files_;
  std::array<std::vector<IoRequest>, 2> queued_;
  std::array<size_t, 2> n_in_flight_ = {};
};

class OverlayFile::Impl {
 public:
  Impl(std::unique_ptr<BlockFile> base, std::unique_ptr<BlockFile> own, uint32_t n_units, uint32_t unit_bytes)
      : unit_bytes_(unit_bytes),
        n_units_(n_units),
        is_own_(n_units),
        is_lost_(n_units),
        mode_(own->mode()),
        requests_(std::min(own->mode().queue_depth, base->mode().queue_depth)),
        files_(std::move(base), std::move(own), mode_.queue_depth) {
    const IoMode& of_base = files_.file(BothFiles::kBase).mode();
    mode_.alignment_bytes = std::max(mode_.alignment_bytes, of_base.alignment_bytes);
    mode_.queue_depth = std::min(mode_.queue_depth, of_base.queue_depth);
  }
  static uint64_t TablesBytes(uint32_t n_units, uint32_t queue_depth) {
    return 2 * CeilDiv<uint64_t>(n_units, 8) + PartedRequests<Request>::MemoryBytes(queue_depth) +
           BothFiles::MemoryBytes(queue_depth);
  }

  const IoMode& mode() const { return mode_; }
  uint64_t size_bytes() const { return uint64_t{n_units_} * unit_bytes_; }
  BothFiles& files() { return files_; }
  const BothFiles& files() const { return files_; }
  void RegisterMemory(std::span<const iovec> regions) {
    files_.ForEach([&](BlockFile& file) { file.RegisterMemory(regions); });
    mode_.notes = files_.file(BothFiles::kOwn).mode().notes;
  }
  Result<size_t> Submit(std::span<const IoRequest> requests);
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least);
  Status Sync();
  void Discard(uint64_t offset_bytes, uint64_t size_bytes);

 private:
  // A part of it at a time is in flight below: what lies together in one file.
  struct Request {
    bool is_used = false;
    uint64_t tag = 0;
    IoKind kind = IoKind::kRead;
    uint64_t offset = 0;  // where what is left begins
    uint64_t left_bytes = 0;
    SegmentCursor given;
    uint32_t first_unit = 0;  // of a write
    uint32_t end_unit = 0;
    iovec segments[kMaxIoSegments];  // of the part
  };

  // Answers the error number where there is nothing to be done: 0 where nothing was asked for.
  std::optional<int> Begin(Request& request, const IoRequest& given);
  bool QueuePart(Request& request);
  void Finish(Request& request, int error_number);
  BothFiles::Which WhereIs(uint32_t unit) const { return is_own_[unit] ? BothFiles::kOwn : BothFiles::kBase; }

  const uint32_t unit_bytes_;
  const uint32_t n_units_;
  std::vector<bool> is_own_;   // the unit was written
  std::vector<bool> is_lost_;  // a write of it has failed
  IoMode mode_;
  PartedRequests<Request> requests_;
  BothFiles files_;  // the first to go: requests in flight use the members above
};

std::optional<int> OverlayFile::Impl::Begin(Request& request, const IoRequest& given) {
  request.kind = given.kind;
  request.offset = given.offset;
  request.given = {given.segments, 0};
  request.first_unit = request.end_unit = 0;
  const std::optional<uint64_t> asked = BytesOf(given, mode_.alignment_bytes);
  if (!asked || given.offset % mode_.alignment_bytes != 0) return EINVAL;
  const uint64_t n_bytes = *asked;
  if (n_bytes == 0) return 0;
  const bool is_write = given.kind == IoKind::kWrite;
  if (is_write && (given.offset % unit_bytes_ != 0 || n_bytes % unit_bytes_ != 0)) return EINVAL;
  if (given.offset > size_bytes() || n_bytes > size_bytes() - given.offset) {
    return is_write ? EINVAL : ENODATA;
  }
  request.left_bytes = n_bytes;
  if (!is_write) return std::nullopt;
  request.first_unit = static_cast<uint32_t>(given.offset / unit_bytes_);
  request.end_unit = request.first_unit + static_cast<uint32_t>(n_bytes / unit_bytes_);
  for (uint32_t unit = request.first_unit; unit < request.end_unit; ++unit) {
    is_own_[unit] = true;
    is_lost_[unit] = false;
  }
  return std::nullopt;
}

// The next units that lie in one file; of those that were lost, zeros are read. False: nothing is left to do.
bool OverlayFile::Impl::QueuePart(Request& request) {
  auto unit = static_cast<uint32_t>(request.offset / unit_bytes_);
  uint64_t at_in_unit = request.offset % unit_bytes_;
  while (request.kind == IoKind::kRead && request.left_bytes > 0 && is_lost_[unit]) {
    const uint64_t n_bytes = std::min(request.left_bytes, unit_bytes_ - at_in_unit);
    request.given.Take(n_bytes,
                       [](std::span<std::byte> memory) { std::memset(memory.data(), 0, memory.size()); });
    request.offset += n_bytes;
    request.left_bytes -= n_bytes;
    ++unit;
    at_in_unit = 0;
  }
  if (request.left_bytes == 0) return false;
  const BothFiles::Which which = WhereIs(unit);
  uint64_t n_bytes = std::min(request.left_bytes, unit_bytes_ - at_in_unit);
  while (n_bytes < request.left_bytes && WhereIs(++unit) == which &&
         (request.kind == IoKind::kWrite || !is_lost_[unit])) {
    n_bytes += std::min<uint64_t>(request.left_bytes - n_bytes, unit_bytes_);
  }
  IoRequest& part = requests_.Queue(request);
  part.kind = request.kind;
  part.offset = BothFiles::OffsetIn(which, request.offset);
  uint32_t n_segments = 0;
  request.given.Take(n_bytes, [&](std::span<std::byte> memory) {
    request.segments[n_segments++] = {memory.data(), memory.size()};
  });
  part.segments = std::span(request.segments).first(n_segments);
  request.offset += n_bytes;
  request.left_bytes -= n_bytes;
  return true;
}

void OverlayFile::Impl::Finish(Request& request, int error_number) {
  for (uint32_t unit = request.first_unit; error_number != 0 && unit < request.end_unit; ++unit)
    is_lost_[unit] = true;
  requests_.Finish(request, error_number);
}

Result<size_t> OverlayFile::Impl::Submit(std::span<const IoRequest> requests) {
  return requests_.Submit(files_, requests, [this](Request& request, const IoRequest& given) {
    if (const auto error = Begin(request, given)) {
      Finish(request, *error);
    } else if (!QueuePart(request)) {
      Finish(request, 0);
    }
  });
}

Result<size_t> OverlayFile::Impl::Complete(std::span<IoCompletion> completions, size_t at_least) {
  const auto on_part = [this](Request& request, int error_number) {
    if (error_number != 0 || request.left_bytes == 0 || !QueuePart(request)) Finish(request, error_number);
  };
  return requests_.Complete(files_, completions, at_least, on_part, [] {});
}

Status OverlayFile::Impl::Sync() {
  KVRUN_CHECK(requests_.are_done());
  KVRUN_RETURN_IF_ERROR(requests_.failure());
  return files_.file(BothFiles::kOwn).Sync();
}

void OverlayFile::Impl::Discard(uint64_t offset_bytes, uint64_t size_bytes) {
  const uint64_t end_bytes = SaturatingSum({offset_bytes, size_bytes});
  const uint64_t first = CeilDiv<uint64_t>(offset_bytes, unit_bytes_);
  const uint64_t end = std::min<uint64_t>(end_bytes / unit_bytes_, n_units_);
  for (uint64_t unit = first; unit < end; ++unit) {
    const uint64_t run_begin = unit;
    while (unit < end && is_own_[unit]) ++unit;
    if (unit == run_begin) continue;
    files_.file(BothFiles::kOwn).Discard(run_begin * unit_bytes_, (unit - run_begin) * unit_bytes_);
  }
}

Result<std::unique_ptr<OverlayFile>> OverlayFile::Create(std::unique_ptr<BlockFile> base,
                                                         std::unique_ptr<BlockFile> own, uint64_t size_bytes,
                                                         uint32_t unit_bytes) {
  const uint32_t alignment_bytes = std::max(base->mode().alignment_bytes, own->mode().alignment_bytes);
  const uint32_t n_units = CountUnits(size_bytes, unit_bytes);
  if (n_units == 0 || unit_bytes % alignment_bytes != 0) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format(
            "what is written over a file that is kept cannot have {} bytes in units of {}: those must "
            "be a multiple of {}, which the folder for the KV cache asks for: name another with --kv-dir",
            size_bytes, unit_bytes, alignment_bytes));
  }
  return std::unique_ptr<OverlayFile>(
      new OverlayFile(std::make_unique<Impl>(std::move(base), std::move(own), n_units, unit_bytes)));
}

OverlayFile::OverlayFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OverlayFile::~OverlayFile() = default;

uint64_t OverlayFile::MemoryBytes(uint64_t size_bytes, uint32_t unit_bytes, uint32_t queue_depth) {
  return sizeof(Impl) + Impl::TablesBytes(CountUnits(size_bytes, unit_bytes), queue_depth);
}

const IoMode& OverlayFile::mode() const { return impl_->mode(); }
Result<size_t> OverlayFile::Submit(std::span<const IoRequest> requests) { return impl_->Submit(requests); }
Result<size_t> OverlayFile::Complete(std::span<IoCompletion> completions, size_t at_least) {
  return impl_->Complete(completions, at_least);
}
Status OverlayFile::Reserve(uint64_t size_bytes) {
  if (size_bytes <= impl_->size_bytes()) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format("a file over one that is kept was made for {} bytes, and {} are asked for",
                      impl_->size_bytes(), size_bytes)};
}
void OverlayFile::RegisterMemory(std::span<const iovec> regions) { impl_->RegisterMemory(regions); }
Status OverlayFile::Sync() { return impl_->Sync(); }
void OverlayFile::Discard(uint64_t offset_bytes, uint64_t size_bytes) {
  impl_->Discard(offset_bytes, size_bytes);
}
void OverlayFile::DropCache() {
  impl_->files().ForEach([](BlockFile& file) { file.DropCache(); });
}
IoCounters OverlayFile::counters() const {
  IoCounters sum = impl_->files().file(BothFiles::kBase).counters();
  const IoCounters own = impl_->files().file(BothFiles::kOwn).counters();
  sum.reads += own.reads;
  sum.read_bytes += own.read_bytes;
  sum.writes += own.writes;
  sum.written_bytes += own.written_bytes;
  return sum;
}

}  // namespace kvrun
