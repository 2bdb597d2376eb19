#include "runtime/store/save_point_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/saturating.h"
#include "platform/base/units.h"
#include "runtime/store/parted_requests.h"
#include "runtime/store/save_point_places.h"

namespace kvrun {
namespace {

constexpr auto kProbeAlignment = std::align_val_t{64 * 1024};  // of any direct I/O

struct FreeProbe {
  void operator()(std::byte* memory) const { operator delete[](memory, kProbeAlignment); }
};

}  // namespace

class SavePointFile::Impl {
 public:
  Impl(std::unique_ptr<BlockFile> file, uint32_t n_units, uint32_t unit_bytes)
      : unit_bytes_(unit_bytes),
        places_(n_units),
        mode_(file->mode()),
        requests_(mode_.queue_depth),
        file_(std::move(file)) {
    mode_.alignment_bytes = std::max(mode_.alignment_bytes, kAlignmentBytes);
  }

  static uint64_t TablesBytes(uint32_t queue_depth) {
    return PartedRequests<Request>::MemoryBytes(queue_depth);
  }

  const IoMode& mode() const { return mode_; }
  void RegisterMemory(std::span<const iovec> regions) {
    file_->RegisterMemory(regions);
    mode_.notes = file_->mode().notes;
  }
  BlockFile& file() { return *file_; }
  const BlockFile& file() const { return *file_; }
  uint64_t size_bytes() const { return uint64_t{places_.n_units()} * unit_bytes_; }
  uint64_t used_bytes() const { return places_.CountUsed() * unit_bytes_; }

  Result<size_t> Submit(std::span<const IoRequest> requests);
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least);
  Status Sync();
  void Discard(uint64_t offset_bytes, uint64_t size_bytes);
  Status VisitState(StateVisitor& visitor, uint32_t number);
  void EndSave();

 private:
  // A part of it at a time is in flight below: what lies together.
  struct Request {
    bool is_used = false;
    uint64_t tag = 0;
    IoRequest given;  // its offset: where what is left begins
    uint64_t left_bytes = 0;
    uint32_t segment = 0;  // where it begins in memory
    uint64_t segment_at = 0;
    uint32_t first_unit = 0;  // which a write has given places
    uint32_t end_unit = 0;
    iovec segments[kMaxIoSegments];  // of the part
  };

  // Answers the error number where there is nothing to be done: 0 where nothing was asked for.
  std::optional<int> Begin(Request& request);
  std::optional<int> FindPlaces(Request& request, uint64_t n_bytes);
  template <typename Visit>
  void Advance(Request& request, uint64_t n_bytes, const Visit& visit);
  bool QueuePart(Request& request);
  void Finish(Request& request, int error_number);
  SavePointPlaces::VisitRun DiscardBelow();
  Status CheckEnd(uint32_t number);

  const uint32_t unit_bytes_;
  SavePointPlaces places_;
  IoMode mode_;
  PartedRequests<Request> requests_;
  bool is_synced_ = true;
  bool is_shown_synced_ = true;
  std::unique_ptr<BlockFile> file_;  // the first to go: requests in flight use the members above
};

std::optional<int> SavePointFile::Impl::Begin(Request& request) {
  const IoRequest& given = request.given;
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
  if (const auto error = FindPlaces(request, n_bytes)) return error;
  request.left_bytes = n_bytes;
  request.segment = 0;
  request.segment_at = 0;
  return std::nullopt;
}

std::optional<int> SavePointFile::Impl::FindPlaces(Request& request, uint64_t n_bytes) {
  const IoRequest& given = request.given;
  const auto first = static_cast<uint32_t>(given.offset / unit_bytes_);
  const auto end = static_cast<uint32_t>((given.offset + n_bytes - 1) / unit_bytes_ + 1);
  if (given.kind == IoKind::kRead) return std::nullopt;
  is_synced_ = false;
  request.first_unit = first;
  request.end_unit = end;
  for (uint32_t unit = first; unit < end; ++unit) {
    if (places_.PlaceToWrite(unit) == SavePointPlaces::kNone) return EFBIG;
  }
  return std::nullopt;
}

// Passes over so many bytes of what is left. visit: pieces of memory that they are read into or written from.
template <typename Visit>
void SavePointFile::Impl::Advance(Request& request, uint64_t n_bytes, const Visit& visit) {
  request.given.offset += n_bytes;
  request.left_bytes -= n_bytes;
  while (n_bytes > 0) {
    const iovec& segment = request.given.segments[request.segment];
    const uint64_t n = std::min(n_bytes, segment.iov_len - request.segment_at);
    if (n > 0) visit(iovec{static_cast<std::byte*>(segment.iov_base) + request.segment_at, n});
    n_bytes -= n;
    request.segment_at += n;
    if (request.segment_at < segment.iov_len) continue;
    ++request.segment;
    request.segment_at = 0;
  }
}

// The next units that lie together; of units that are not there, zeros are read. False: nothing is left to
// do.
bool SavePointFile::Impl::QueuePart(Request& request) {
  auto unit = static_cast<uint32_t>(request.given.offset / unit_bytes_);
  uint64_t at_in_unit = request.given.offset % unit_bytes_;
  while (request.given.kind == IoKind::kRead && request.left_bytes > 0 && !places_.IsThere(unit)) {
    Advance(request, std::min(request.left_bytes, unit_bytes_ - at_in_unit),
            [](const iovec& memory) { std::memset(memory.iov_base, 0, memory.iov_len); });
    ++unit;
    at_in_unit = 0;
  }
  if (request.left_bytes == 0) return false;
  uint32_t place = places_.PlaceOf(unit);
  IoRequest& part = requests_.Queue(request);
  part.kind = request.given.kind;
  part.offset = uint64_t{place} * unit_bytes_ + at_in_unit;
  uint64_t n_bytes = std::min(request.left_bytes, unit_bytes_ - at_in_unit);
  while (n_bytes < request.left_bytes && places_.PlaceOf(++unit) == ++place &&
         (part.kind == IoKind::kWrite || places_.IsThere(unit))) {
    n_bytes += std::min<uint64_t>(request.left_bytes - n_bytes, unit_bytes_);
  }
  uint32_t n_segments = 0;
  Advance(request, n_bytes, [&](const iovec& memory) { request.segments[n_segments++] = memory; });
  part.segments = std::span(request.segments).first(n_segments);
  return true;
}

void SavePointFile::Impl::Finish(Request& request, int error_number) {
  // What a write that failed has left there is no unit.
  if (error_number != 0) places_.Discard(request.first_unit, request.end_unit, [](uint32_t, uint32_t) {});
  requests_.Finish(request, error_number);
}

Result<size_t> SavePointFile::Impl::Submit(std::span<const IoRequest> requests) {
  return requests_.Submit(*file_, requests, [this](Request& request, const IoRequest& given) {
    request.given = given;
    if (const auto error = Begin(request)) {
      Finish(request, *error);
    } else if (!QueuePart(request)) {
      Finish(request, 0);
    }
  });
}

Result<size_t> SavePointFile::Impl::Complete(std::span<IoCompletion> completions, size_t at_least) {
  const auto on_part = [this](Request& request, int error_number) {
    if (error_number != 0 || request.left_bytes == 0 || !QueuePart(request)) Finish(request, error_number);
  };
  return requests_.Complete(*file_, completions, at_least, on_part, [] {});
}

Status SavePointFile::Impl::Sync() {
  KVRUN_CHECK(requests_.are_done());
  KVRUN_RETURN_IF_ERROR(requests_.failure());
  KVRUN_RETURN_IF_ERROR(file_->Sync());
  is_synced_ = true;
  return Status::Ok();
}

SavePointPlaces::VisitRun SavePointFile::Impl::DiscardBelow() {
  return [this](uint32_t first, uint32_t end) {
    file_->Discard(uint64_t{first} * unit_bytes_, uint64_t{end - first} * unit_bytes_);
  };
}

void SavePointFile::Impl::Discard(uint64_t offset_bytes, uint64_t size_bytes) {
  const uint64_t end_bytes = SaturatingSum({offset_bytes, size_bytes});
  const uint64_t first = offset_bytes / unit_bytes_ + (offset_bytes % unit_bytes_ != 0 ? 1 : 0);
  const uint64_t end = std::min<uint64_t>(end_bytes / unit_bytes_, places_.n_units());
  if (first >= end) return;
  places_.Discard(static_cast<uint32_t>(first), static_cast<uint32_t>(end), DiscardBelow());
}

Status SavePointFile::Impl::VisitState(StateVisitor& visitor, uint32_t number) {
  KVRUN_CHECK(requests_.are_done());
  KVRUN_CHECK(!visitor.is_loading() || places_.CountUsed() == 0);
  KVRUN_RETURN_IF_ERROR(places_.VisitState(visitor, number, unit_bytes_));
  is_shown_synced_ = is_synced_;
  return visitor.is_loading() ? CheckEnd(number) : Status::Ok();
}

// All that is there lies before the end of the file.
Status SavePointFile::Impl::CheckEnd(uint32_t number) {
  const uint32_t highest = places_.HighestPlace();
  if (highest == SavePointPlaces::kNone) return Status::Ok();
  const uint64_t end_bytes = SaturatingProduct({uint64_t{highest} + 1, unit_bytes_});
  const uint32_t n_bytes = mode_.alignment_bytes;
  const std::unique_ptr<std::byte[], FreeProbe> memory(new (kProbeAlignment) std::byte[n_bytes]);
  const iovec segment{memory.get(), n_bytes};
  IoCompletion completion{0, ENODATA};
  if (end_bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    const IoRequest request{IoKind::kRead, end_bytes - n_bytes, {&segment, 1}, 0};
    KVRUN_RETURN_IF_ERROR(file_->Submit({&request, 1}).status());
    KVRUN_RETURN_IF_ERROR(file_->Complete({&completion, 1}, 1).status());
  }
  if (completion.error_number == 0) return Status::Ok();
  if (completion.error_number != ENODATA) {
    return StatusFromErrno(completion.error_number,
                           fmt::format("cannot read the KV cache's file {}", number));
  }
  return {StatusCode::kCorrupt,
          fmt::format("the KV cache's file {} ends before byte {}, where the last of what was saved ends: it "
                      "was cut off or is another session's, and the session has to be computed again",
                      number, end_bytes)};
}

void SavePointFile::Impl::EndSave() {
  KVRUN_CHECK(requests_.are_done());
  KVRUN_CHECK(is_shown_synced_);
  places_.EndSave(DiscardBelow());
}

Result<std::unique_ptr<SavePointFile>> SavePointFile::Create(std::unique_ptr<BlockFile> file,
                                                             uint64_t size_bytes, uint32_t unit_bytes) {
  const uint32_t alignment_bytes = std::max(file->mode().alignment_bytes, kAlignmentBytes);
  if (unit_bytes == 0 || unit_bytes % alignment_bytes != 0) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("a file that is kept cannot have units of {} bytes: they must be a multiple of {}",
                    unit_bytes, alignment_bytes));
  }
  const uint32_t n_units = CountUnits(size_bytes, unit_bytes);
  if (n_units == 0) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("a file that is kept cannot have {} bytes in units of {}", size_bytes, unit_bytes));
  }
  return std::unique_ptr<SavePointFile>(
      new SavePointFile(std::make_unique<Impl>(std::move(file), n_units, unit_bytes)));
}

SavePointFile::SavePointFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SavePointFile::~SavePointFile() = default;

uint64_t SavePointFile::MemoryBytes(uint64_t size_bytes, uint32_t unit_bytes, uint32_t queue_depth) {
  return sizeof(Impl) + Impl::TablesBytes(queue_depth) +
         SavePointPlaces::MemoryBytes(CountUnits(size_bytes, unit_bytes)) - sizeof(SavePointPlaces);
}

const IoMode& SavePointFile::mode() const { return impl_->mode(); }
Result<size_t> SavePointFile::Submit(std::span<const IoRequest> requests) { return impl_->Submit(requests); }
Result<size_t> SavePointFile::Complete(std::span<IoCompletion> completions, size_t at_least) {
  return impl_->Complete(completions, at_least);
}
Status SavePointFile::Reserve(uint64_t size_bytes) {
  if (size_bytes <= impl_->size_bytes()) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format("a file that is kept was made for {} bytes, and {} are asked for", impl_->size_bytes(),
                      size_bytes)};
}
void SavePointFile::RegisterMemory(std::span<const iovec> regions) { impl_->RegisterMemory(regions); }
void SavePointFile::DropCache() { impl_->file().DropCache(); }
IoCounters SavePointFile::counters() const { return impl_->file().counters(); }
Status SavePointFile::Sync() { return impl_->Sync(); }
void SavePointFile::Discard(uint64_t offset_bytes, uint64_t size_bytes) {
  impl_->Discard(offset_bytes, size_bytes);
}
Status SavePointFile::VisitState(StateVisitor& visitor, uint32_t number) {
  return impl_->VisitState(visitor, number);
}
void SavePointFile::EndSave() { impl_->EndSave(); }
uint64_t SavePointFile::used_bytes() const { return impl_->used_bytes(); }

}  // namespace kvrun
