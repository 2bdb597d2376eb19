#include "runtime/store/sealed_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/saturating.h"
#include "platform/base/units.h"
#include "runtime/store/helper_threads.h"
#include "runtime/store/parted_requests.h"
#include "runtime/store/sealed_units.h"

namespace kvrun {
namespace {

constexpr auto kMemoryAlignment = std::align_val_t{64 * 1024};  // of any direct I/O
constexpr uint32_t kMostBuffers = 4;
constexpr uint32_t kBufferBytes = 64 * 1024;  // of whole units, if one is not longer
// Less is opened sooner than a helper wakes.
constexpr uint64_t kLeastSharedBytes = 64 * 1024;
constexpr uint64_t kStackBytes = 16 * 1024;  // of a helper

uint32_t UnitsOfBuffer(uint32_t unit_bytes) { return std::max(kBufferBytes / unit_bytes, 1U); }

// Buffers, and of each thread a unit for what does not lie in one piece.
uint64_t MemoryUnits(uint32_t unit_bytes, uint32_t queue_depth, uint32_t n_helpers) {
  return uint64_t{std::min(queue_depth, kMostBuffers)} * UnitsOfBuffer(unit_bytes) + 1 + n_helpers;
}

}  // namespace

class SealedFile::Impl {
 public:
  Impl(std::unique_ptr<BlockFile> file, SealedUnits units, uint32_t unit_bytes)
      : unit_bytes_(unit_bytes),
        units_(std::move(units)),
        mode_(file->mode()),
        requests_(mode_.queue_depth),
        waiting_(mode_.queue_depth),
        come_(mode_.queue_depth),
        file_(std::move(file)) {
    mode_.alignment_bytes = std::max(mode_.alignment_bytes, kAlignmentBytes);
    if (unit_bytes <= kPageBytes && std::has_single_bit(unit_bytes)) mode_.alignment_bytes = unit_bytes;
  }
  Status TakeMemory(uint32_t n_helpers);
  Status StartHelpers(uint32_t n_helpers);
  static uint64_t TablesBytes(uint32_t queue_depth) {
    return PartedRequests<Request>::MemoryBytes(queue_depth) + queue_depth * 2 * sizeof(uint32_t);
  }

  const IoMode& mode() const { return mode_; }
  void RegisterMemory(std::span<const iovec> regions) {
    file_->RegisterMemory(regions);
    mode_.notes = file_->mode().notes;
  }
  BlockFile& file() { return *file_; }
  const BlockFile& file() const { return *file_; }
  uint64_t size_bytes() const { return uint64_t{units_.n_units()} * unit_bytes_; }
  Result<size_t> Submit(std::span<const IoRequest> requests);
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least);
  void Discard(uint64_t offset_bytes, uint64_t size_bytes);
  Status Grow(uint64_t size_bytes) {
    if (size_bytes <= this->size_bytes()) return Status::Ok();
    const uint32_t n_units = CountUnits(size_bytes, unit_bytes_);
    if (n_units > 0) return units_.Grow(n_units);
    return {StatusCode::kInvalidArgument,
            fmt::format("a file that is encrypted cannot have {} in units of {} bytes",
                        FormatBytes(size_bytes), unit_bytes_)};
  }
  Status VisitState(StateVisitor& visitor) {
    KVRUN_CHECK(requests_.are_done());
    KVRUN_RETURN_IF_ERROR(units_.VisitState(visitor));
    for (SealedUnits::Opener& opener : openers_) KVRUN_RETURN_IF_ERROR(units_.Prepare(&opener));
    return Status::Ok();
  }

 private:
  // A part of it at a time is in flight below.
  struct Request {
    bool is_used = false;
    IoKind kind = IoKind::kRead;
    uint64_t tag = 0;
    int error_number = 0;     // of units that do not open
    uint32_t first_unit = 0;  // of all of it
    uint32_t next_unit = 0;   // behind the part
    uint32_t end_unit = 0;
    SegmentCursor given;  // behind the part
    uint32_t part_unit = 0;
    uint32_t n_segments = 0;  // of the part
    uint32_t buffer = 0;      // of a write
    iovec segments[kMaxIoSegments];
  };

  // Answers the error number where there is nothing to be done: 0 where nothing was asked for.
  std::optional<int> Begin(Request& request, const IoRequest& given);
  // Its next part, or its end; a write may have to wait for a buffer.
  void GoOn(Request& request);
  void ReadPart(Request& request);
  void WritePart(Request& request);
  bool SealPart(Request& request, std::span<std::byte> buffer);
  // By the thread of that number; of several, each has requests of its own.
  void OpenPart(Request& request, uint32_t thread);
  bool OpenUnit(uint32_t unit, std::span<std::byte> bytes, uint32_t thread);
  void OpenWhatHasCome();
  void OnPart(Request& request, int error_number);
  void Queue(Request& request, uint32_t n_units);
  void Finish(Request& request, int error_number);
  void ServeWaiting();

  struct FreeMemory {
    void operator()(std::byte* memory) const { operator delete[](memory, kMemoryAlignment); }
  };

  const uint32_t unit_bytes_;
  SealedUnits units_;
  IoMode mode_;
  std::unique_ptr<std::byte[], FreeMemory> memory_;
  std::byte* scratch_ = nullptr;  // of it, a unit of each thread
  std::vector<uint32_t> free_buffers_;
  PartedRequests<Request> requests_;
  std::vector<uint32_t> waiting_;  // a ring: writes that have no buffer yet
  uint32_t waiting_begin_ = 0;
  uint32_t n_waiting_ = 0;
  std::vector<uint32_t> come_;  // reads of which a part has come and is to be opened
  uint32_t n_come_ = 0;
  std::vector<SealedUnits::Opener> openers_;  // of each helper
  std::unique_ptr<HelperThreads> helpers_;    // null: there are none
  std::unique_ptr<BlockFile> file_;           // the first to go: requests in flight use the members above
};

Status SealedFile::Impl::TakeMemory(uint32_t n_helpers) {
  const uint64_t n_bytes = MemoryUnits(unit_bytes_, mode_.queue_depth, n_helpers) * unit_bytes_;
  memory_.reset(new (kMemoryAlignment, std::nothrow) std::byte[n_bytes]);
  if (memory_ == nullptr) {
    return {StatusCode::kOutOfMemory,
            fmt::format("there is not enough memory for what is encrypted, which needs {}",
                        FormatBytes(n_bytes))};
  }
  const uint32_t n_buffers = std::min(mode_.queue_depth, kMostBuffers);
  const uint64_t scratch_bytes = uint64_t{1 + n_helpers} * unit_bytes_;
  scratch_ = memory_.get() + n_bytes - scratch_bytes;
  for (uint32_t i = n_buffers; i > 0; --i) free_buffers_.push_back(i - 1);
  const iovec region{memory_.get(), n_bytes - scratch_bytes};
  RegisterMemory({&region, 1});
  return Status::Ok();
}

Status SealedFile::Impl::StartHelpers(uint32_t n_helpers) {
  if (n_helpers == 0) return Status::Ok();
  for (uint32_t i = 0; i < n_helpers; ++i) {
    KVRUN_ASSIGN_OR_RETURN(SealedUnits::Opener opener, units_.MakeOpener());
    openers_.push_back(std::move(opener));
  }
  KVRUN_ASSIGN_OR_RETURN(helpers_, HelperThreads::Create(n_helpers, [this](uint32_t job, uint32_t thread) {
                           OpenPart(requests_[come_[job]], thread);
                         }));
  return Status::Ok();
}

std::optional<int> SealedFile::Impl::Begin(Request& request, const IoRequest& given) {
  request.kind = given.kind;
  request.error_number = 0;
  request.first_unit = request.next_unit = request.end_unit = 0;
  request.given = {given.segments, 0};
  const std::optional<uint64_t> asked = BytesOf(given, mode_.alignment_bytes);
  if (!asked || given.offset % unit_bytes_ != 0) return EINVAL;
  const uint64_t n_bytes = *asked;
  if (n_bytes == 0) return 0;
  if (n_bytes % unit_bytes_ != 0) return EINVAL;
  if (given.offset > size_bytes() || n_bytes > size_bytes() - given.offset)
    return given.kind == IoKind::kWrite ? EINVAL : ENODATA;
  request.first_unit = request.next_unit = static_cast<uint32_t>(given.offset / unit_bytes_);
  request.end_unit = request.first_unit + static_cast<uint32_t>(n_bytes / unit_bytes_);
  return std::nullopt;
}

void SealedFile::Impl::GoOn(Request& request) {
  if (request.kind == IoKind::kRead) return ReadPart(request);
  if (request.next_unit == request.end_unit) return Finish(request, 0);
  if (!free_buffers_.empty() && n_waiting_ == 0) return WritePart(request);
  waiting_[(waiting_begin_ + n_waiting_++) % waiting_.size()] = requests_.IndexOf(request);
}

void SealedFile::Impl::Queue(Request& request, uint32_t n_units) {
  request.part_unit = request.next_unit;
  request.next_unit += n_units;
  IoRequest& part = requests_.Queue(request);
  part.kind = request.kind;
  part.offset = uint64_t{request.part_unit} * unit_bytes_;
  part.segments = std::span(request.segments).first(request.n_segments);
}

// The next units that are there; of those that are not, zeros are read.
void SealedFile::Impl::ReadPart(Request& request) {
  while (request.next_unit < request.end_unit && !units_.IsThere(request.next_unit)) {
    request.given.Take(unit_bytes_,
                       [](std::span<std::byte> memory) { std::memset(memory.data(), 0, memory.size()); });
    ++request.next_unit;
  }
  if (request.next_unit == request.end_unit) return Finish(request, request.error_number);
  uint32_t end = request.next_unit + 1;
  while (end < request.end_unit && units_.IsThere(end)) ++end;
  const uint32_t n_units = end - request.next_unit;
  request.n_segments = 0;
  request.given.Take(uint64_t{n_units} * unit_bytes_, [&](std::span<std::byte> memory) {
    request.segments[request.n_segments++] = {memory.data(), memory.size()};
  });
  Queue(request, n_units);
}

bool SealedFile::Impl::OpenUnit(uint32_t unit, std::span<std::byte> bytes, uint32_t thread) {
  return (thread == 0 ? units_.Open(unit, bytes) : units_.Open(unit, bytes, &openers_[thread - 1])).ok();
}

void SealedFile::Impl::OpenPart(Request& request, uint32_t thread) {
  SegmentCursor cursor{std::span(request.segments).first(request.n_segments), 0};
  std::byte* const scratch = scratch_ + size_t{thread} * unit_bytes_;
  for (uint32_t unit = request.part_unit; unit < request.next_unit; ++unit) {
    const std::span<std::byte> in_place = cursor.Next(unit_bytes_);
    if (!in_place.empty()) {
      if (!OpenUnit(unit, in_place, thread)) request.error_number = EBADMSG;
      cursor.Take(unit_bytes_, [](std::span<std::byte>) {});
      continue;
    }
    std::byte* at = scratch;
    SegmentCursor from = cursor;
    from.Take(unit_bytes_, [&](std::span<std::byte> memory) {
      std::memcpy(at, memory.data(), memory.size());
      at += memory.size();
    });
    if (!OpenUnit(unit, {scratch, unit_bytes_}, thread)) request.error_number = EBADMSG;
    at = scratch;
    cursor.Take(unit_bytes_, [&](std::span<std::byte> memory) {
      std::memcpy(memory.data(), at, memory.size());
      at += memory.size();
    });
  }
}

void SealedFile::Impl::OpenWhatHasCome() {
  uint64_t n_units = 0;
  for (uint32_t i = 0; i < n_come_; ++i) {
    const Request& request = requests_[come_[i]];
    n_units += request.next_unit - request.part_unit;
  }
  if (helpers_ != nullptr && n_come_ > 1 && n_units * unit_bytes_ >= kLeastSharedBytes) {
    helpers_->Run(n_come_);
  } else {
    for (uint32_t i = 0; i < n_come_; ++i) OpenPart(requests_[come_[i]], 0);
  }
  const uint32_t n = std::exchange(n_come_, 0);
  for (uint32_t i = 0; i < n; ++i) GoOn(requests_[come_[i]]);
}

// With a buffer that is free.
void SealedFile::Impl::WritePart(Request& request) {
  request.buffer = free_buffers_.back();
  free_buffers_.pop_back();
  const uint32_t n_units = std::min(UnitsOfBuffer(unit_bytes_), request.end_unit - request.next_unit);
  const uint64_t buffer_bytes = uint64_t{UnitsOfBuffer(unit_bytes_)} * unit_bytes_;
  const std::span<std::byte> buffer(memory_.get() + request.buffer * buffer_bytes,
                                    uint64_t{n_units} * unit_bytes_);
  if (!SealPart(request, buffer)) {
    free_buffers_.push_back(request.buffer);
    return Finish(request, EIO);
  }
  request.segments[0] = {buffer.data(), buffer.size()};
  request.n_segments = 1;
  Queue(request, n_units);
}

bool SealedFile::Impl::SealPart(Request& request, std::span<std::byte> buffer) {
  for (uint32_t unit = request.next_unit; !buffer.empty(); ++unit, buffer = buffer.subspan(unit_bytes_)) {
    const std::span<std::byte> sealed = buffer.first(unit_bytes_);
    std::span<const std::byte> plain = request.given.Next(unit_bytes_);
    std::byte* at = sealed.data();
    request.given.Take(unit_bytes_, [&](std::span<std::byte> memory) {
      if (plain.empty()) std::memcpy(at, memory.data(), memory.size());
      at += memory.size();
    });
    if (plain.empty()) plain = sealed;
    if (!units_.Seal(unit, plain, sealed).ok()) return false;
  }
  return true;
}

void SealedFile::Impl::OnPart(Request& request, int error_number) {
  if (request.kind == IoKind::kWrite) free_buffers_.push_back(request.buffer);
  if (error_number != 0) return Finish(request, error_number);
  if (request.kind == IoKind::kWrite) return GoOn(request);
  come_[n_come_++] = requests_.IndexOf(request);
}

void SealedFile::Impl::ServeWaiting() {
  while (n_waiting_ > 0 && !free_buffers_.empty()) {
    Request& request = requests_[waiting_[waiting_begin_]];
    waiting_begin_ = (waiting_begin_ + 1) % static_cast<uint32_t>(waiting_.size());
    --n_waiting_;
    WritePart(request);
  }
}

void SealedFile::Impl::Finish(Request& request, int error_number) {
  if (request.kind == IoKind::kWrite && error_number != 0)
    units_.Forget(request.first_unit, request.end_unit);
  requests_.Finish(request, error_number);
}

Result<size_t> SealedFile::Impl::Submit(std::span<const IoRequest> requests) {
  return requests_.Submit(*file_, requests, [this](Request& request, const IoRequest& given) {
    if (const auto error = Begin(request, given)) {
      Finish(request, *error);
    } else {
      GoOn(request);
    }
  });
}

Result<size_t> SealedFile::Impl::Complete(std::span<IoCompletion> completions, size_t at_least) {
  return requests_.Complete(
      *file_, completions, at_least,
      [this](Request& request, int error_number) { OnPart(request, error_number); },
      [this] {
        OpenWhatHasCome();
        ServeWaiting();
      });
}

void SealedFile::Impl::Discard(uint64_t offset_bytes, uint64_t size_bytes) {
  const uint64_t end_bytes = SaturatingSum({offset_bytes, size_bytes});
  const uint64_t first = CeilDiv<uint64_t>(offset_bytes, unit_bytes_);
  const uint64_t end = std::min<uint64_t>(end_bytes / unit_bytes_, units_.n_units());
  if (first >= end) return;
  units_.Forget(static_cast<uint32_t>(first), static_cast<uint32_t>(end));
  file_->Discard(first * unit_bytes_, (end - first) * unit_bytes_);
}

Result<std::unique_ptr<SealedFile>> SealedFile::Create(std::unique_ptr<BlockFile> file, const SecretKey& key,
                                                       const SealedShape& shape, uint32_t number,
                                                       uint32_t n_helpers) {
  const uint32_t alignment_bytes = std::max(file->mode().alignment_bytes, kAlignmentBytes);
  if (shape.n_units() == 0 || shape.unit_bytes % alignment_bytes != 0) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("a file that is encrypted cannot have {} bytes in units of {}: those must be a multiple "
                    "of {}",
                    shape.size_bytes, shape.unit_bytes, alignment_bytes));
  }
  KVRUN_CHECK(shape.used_bytes <= shape.unit_bytes && shape.held_units <= shape.lane_units);
  KVRUN_ASSIGN_OR_RETURN(SealedUnits units, SealedUnits::Create(key, shape, number));
  auto impl = std::make_unique<Impl>(std::move(file), std::move(units), shape.unit_bytes);
  KVRUN_RETURN_IF_ERROR(impl->TakeMemory(n_helpers));
  KVRUN_RETURN_IF_ERROR(impl->StartHelpers(n_helpers));
  return std::unique_ptr<SealedFile>(new SealedFile(std::move(impl)));
}

SealedFile::SealedFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SealedFile::~SealedFile() = default;

uint64_t SealedFile::MemoryBytes(const SealedShape& shape, uint32_t queue_depth, uint32_t n_helpers) {
  if (shape.n_units() == 0) return 0;
  return SaturatingSum({sizeof(Impl), Impl::TablesBytes(queue_depth), SealedUnits::MemoryBytes(shape),
                        MemoryUnits(shape.unit_bytes, queue_depth, n_helpers) * shape.unit_bytes,
                        n_helpers * (kStackBytes + SealedUnits::kOpenerBytes)});
}

const IoMode& SealedFile::mode() const { return impl_->mode(); }
Result<size_t> SealedFile::Submit(std::span<const IoRequest> requests) { return impl_->Submit(requests); }
Result<size_t> SealedFile::Complete(std::span<IoCompletion> completions, size_t at_least) {
  return impl_->Complete(completions, at_least);
}
Status SealedFile::Reserve(uint64_t size_bytes) {
  KVRUN_RETURN_IF_ERROR(impl_->file().Reserve(size_bytes));
  return impl_->Grow(size_bytes);
}
void SealedFile::RegisterMemory(std::span<const iovec> regions) { impl_->RegisterMemory(regions); }
Status SealedFile::Sync() { return impl_->file().Sync(); }
void SealedFile::Discard(uint64_t offset_bytes, uint64_t size_bytes) {
  impl_->Discard(offset_bytes, size_bytes);
}
void SealedFile::DropCache() { impl_->file().DropCache(); }
IoCounters SealedFile::counters() const { return impl_->file().counters(); }
Status SealedFile::VisitState(StateVisitor& visitor) { return impl_->VisitState(visitor); }

}  // namespace kvrun
