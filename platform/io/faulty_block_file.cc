#include "platform/io/faulty_block_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace kvrun {
namespace {

constexpr auto kRubbish = std::byte{0xee};
constexpr auto kMemoryAlignment = std::align_val_t{64 * 1024};  // of any direct I/O
constexpr FaultKind kAllKinds[] = {FaultKind::kIoError,   FaultKind::kNoSpace,     FaultKind::kShortRead,
                                   FaultKind::kBitFlip,   FaultKind::kMisdirected, FaultKind::kLostWrite,
                                   FaultKind::kTornWrite, FaultKind::kStaleData};

bool Overlap(const IoRequest& request, std::span<const std::byte> memory) {
  return std::any_of(request.segments.begin(), request.segments.end(), [memory](const iovec& segment) {
    const auto* begin = static_cast<const std::byte*>(segment.iov_base);
    return begin < memory.data() + memory.size() && memory.data() < begin + segment.iov_len;
  });
}

uint64_t BytesOf(const IoRequest& request) {
  uint64_t bytes = 0;
  for (const iovec& segment : request.segments) bytes += segment.iov_len;
  return bytes;
}

// Calls f(memory, bytes) for the parts of [begin, begin + bytes) of the request's memory.
template <typename F>
void ForEachPart(const IoRequest& request, uint64_t begin, uint64_t bytes, F f) {
  for (const iovec& segment : request.segments) {
    const uint64_t skipped = std::min<uint64_t>(begin, segment.iov_len);
    const uint64_t part = std::min(bytes, segment.iov_len - skipped);
    if (part > 0) f(static_cast<std::byte*>(segment.iov_base) + skipped, part);
    begin -= skipped;
    bytes -= part;
  }
}

void Gather(const IoRequest& request, uint64_t bytes, std::byte* to) {
  ForEachPart(request, 0, bytes, [&](const std::byte* from, uint64_t part) {
    std::memcpy(to, from, part);
    to += part;
  });
}

void Fill(const IoRequest& request, uint64_t begin, uint64_t bytes) {
  ForEachPart(request, begin, bytes,
              [](std::byte* to, uint64_t part) { std::memset(to, std::to_integer<int>(kRubbish), part); });
}

}  // namespace

std::string_view FaultKindName(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNone: return "none";
    case FaultKind::kIoError: return "i/o error";
    case FaultKind::kNoSpace: return "no space";
    case FaultKind::kShortRead: return "short read";
    case FaultKind::kBitFlip: return "bit flip";
    case FaultKind::kMisdirected: return "misdirected";
    case FaultKind::kLostWrite: return "lost write";
    case FaultKind::kTornWrite: return "torn write";
    case FaultKind::kStaleData: return "stale data";
  }
  return "unknown";
}

bool FaultFits(FaultKind kind, IoKind request) {
  switch (kind) {
    case FaultKind::kNone:
    case FaultKind::kIoError:
    case FaultKind::kBitFlip:
    case FaultKind::kMisdirected: return true;
    case FaultKind::kShortRead:
    case FaultKind::kStaleData: return request == IoKind::kRead;
    case FaultKind::kNoSpace:
    case FaultKind::kLostWrite:
    case FaultKind::kTornWrite: return request == IoKind::kWrite;
  }
  return false;
}

void FaultyBlockFile::Aligned::operator()(std::byte* memory) const {
  operator delete[](memory, kMemoryAlignment);
}

FaultyBlockFile::FaultyBlockFile(std::unique_ptr<BlockFile> file, const FaultPlan& plan)
    : file_(std::move(file)), plan_(plan), random_(plan.seed), requests_(file_->mode().queue_depth) {
  if (plan_.random_kinds.empty()) plan_.random_kinds.assign(std::begin(kAllKinds), std::end(kAllKinds));
  const auto stale = [](const Fault& fault) { return fault.kind == FaultKind::kStaleData; };
  const bool random_stale =
      std::count(plan_.random_kinds.begin(), plan_.random_kinds.end(), FaultKind::kStaleData) > 0;
  keeps_history_ =
      (plan_.probability > 0 && random_stale) || std::any_of(plan_.faults.begin(), plan_.faults.end(), stale);
}

Status FaultyBlockFile::Reserve(uint64_t size_bytes) {
  size_bytes_ = std::max(size_bytes_, size_bytes);
  return file_->Reserve(size_bytes);
}

FaultKind FaultyBlockFile::Decide(const IoRequest& request, uint64_t bytes) {
  const bool reads = request.kind == IoKind::kRead;
  const uint64_t index = reads ? counters_.reads : counters_.writes;
  if (!reads && counters_.written_bytes + bytes > plan_.capacity_bytes) return FaultKind::kNoSpace;
  for (const Fault& fault : plan_.faults) {
    if (fault.request == request.kind && index >= fault.index && index - fault.index < fault.count) {
      return FaultFits(fault.kind, request.kind) ? fault.kind : FaultKind::kNone;
    }
  }
  if (std::uniform_real_distribution<double>(0, 1)(random_) >= plan_.probability) return FaultKind::kNone;
  const FaultKind kind = plan_.random_kinds[random_() % plan_.random_kinds.size()];
  return FaultFits(kind, request.kind) ? kind : FaultKind::kNone;
}

Result<size_t> FaultyBlockFile::Submit(std::span<const IoRequest> requests) {
  size_t n_taken = 0;
  for (const IoRequest& given : requests) {
    const auto place =
        std::find_if(requests_.begin(), requests_.end(), [](const Request& r) { return !r.used; });
    if (place == requests_.end()) break;
    Request& request = *place;
    request.given = given;
    request.bytes = BytesOf(given);
    request.fault = request.bytes > 0 ? Decide(given, request.bytes) : FaultKind::kNone;
    IoRequest handed = given;
    handed.tag = static_cast<uint64_t>(place - requests_.begin());
    int error_number = 0;
    request.used = true;
    if (Prepare(request, handed, error_number)) {
      KVRUN_ASSIGN_OR_RETURN(const size_t taken, file_->Submit({&handed, 1}));
      if (taken == 0) return Status(StatusCode::kInternal, "the file's queue is shorter than it says");
    } else {
      ready_.push_back({handed.tag, error_number});
    }
    if (request.fault != FaultKind::kNone) ++n_faults_;
    const bool reads = given.kind == IoKind::kRead;
    (reads ? counters_.reads : counters_.writes) += 1;
    (reads ? counters_.read_bytes : counters_.written_bytes) += request.bytes;
    ++n_taken;
  }
  return n_taken;
}

bool FaultyBlockFile::Prepare(Request& request, IoRequest& handed, int& error_number) {
  const bool reads = request.given.kind == IoKind::kRead;
  const uint64_t alignment = mode().alignment_bytes;
  uint64_t kept_bytes = request.bytes;
  if (reads && Overlap(request.given, plan_.refused_memory)) {
    error_number = EFAULT;
    return false;
  }
  switch (request.fault) {
    case FaultKind::kIoError:
      error_number = EIO;
      if (reads) Fill(request.given, 0, request.bytes);
      return false;
    case FaultKind::kLostWrite: return false;
    case FaultKind::kNoSpace:
    case FaultKind::kTornWrite:
      kept_bytes = request.bytes / 2 / alignment * alignment;
      if (request.fault == FaultKind::kNoSpace) error_number = ENOSPC;
      if (kept_bytes == 0) return false;
      CopyForWriting(request, kept_bytes, handed);
      break;
    case FaultKind::kBitFlip:
      if (reads) break;
      CopyForWriting(request, request.bytes, handed);
      request.copy[random_() % request.bytes] ^= std::byte{1} << (random_() % 8);
      break;
    case FaultKind::kMisdirected: handed.offset = AnotherOffset(handed.offset, request.bytes); break;
    default: break;
  }
  if (!reads) {
    IoRequest written = handed;
    written.segments = request.given.segments;
    Remember(written, kept_bytes);
  }
  return true;
}

void FaultyBlockFile::CopyForWriting(Request& request, uint64_t bytes, IoRequest& handed) {
  request.copy.reset(new (kMemoryAlignment) std::byte[bytes]);
  Gather(request.given, bytes, request.copy.get());
  request.copied = {request.copy.get(), bytes};
  handed.segments = {&request.copied, 1};
}

uint64_t FaultyBlockFile::AnotherOffset(uint64_t offset, uint64_t bytes) {
  const uint64_t first = offset % bytes;  // places of the same size, side by side
  const uint64_t n_places = size_bytes_ > first ? (size_bytes_ - first) / bytes : 0;
  if (n_places < 2) return offset + bytes;
  const uint64_t own = offset / bytes;
  return first + (own + 1 + random_() % (n_places - 1)) % n_places * bytes;
}

void FaultyBlockFile::Remember(const IoRequest& request, uint64_t bytes) {
  size_bytes_ = std::max(size_bytes_, request.offset + bytes);
  if (!keeps_history_) return;
  if (now_.size() < size_bytes_) {
    now_.resize(size_bytes_);
    before_.resize(size_bytes_);
  }
  std::memcpy(before_.data() + request.offset, now_.data() + request.offset, bytes);
  Gather(request, bytes, now_.data() + request.offset);
}

int FaultyBlockFile::Spoil(const Request& request, int error_number) {
  const IoRequest& given = request.given;
  const bool reads = given.kind == IoKind::kRead;
  if (request.fault == FaultKind::kNoSpace) return ENOSPC;
  if (!reads || error_number != 0) return error_number;
  switch (request.fault) {
    case FaultKind::kShortRead:
      Fill(given, request.bytes / 2, request.bytes - request.bytes / 2);
      return ENODATA;
    case FaultKind::kBitFlip:
      ForEachPart(given, random_() % request.bytes, 1,
                  [&](std::byte* byte, uint64_t) { *byte ^= std::byte{1} << (random_() % 8); });
      return 0;
    case FaultKind::kStaleData: {
      uint64_t offset = given.offset;
      before_.resize(std::max<size_t>(before_.size(), offset + request.bytes));
      now_.resize(before_.size());
      ForEachPart(given, 0, request.bytes, [&](std::byte* to, uint64_t part) {
        std::memcpy(to, before_.data() + offset, part);
        offset += part;
      });
      return 0;
    }
    default: return 0;
  }
}

Result<size_t> FaultyBlockFile::Complete(std::span<IoCompletion> completions, size_t at_least) {
  size_t n_out = std::min(completions.size(), ready_.size());
  std::copy_n(ready_.begin(), n_out, completions.begin());
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<ptrdiff_t>(n_out));
  KVRUN_ASSIGN_OR_RETURN(const size_t n_answers, file_->Complete(completions.subspan(n_out),
                                                                 at_least > n_out ? at_least - n_out : 0));
  for (IoCompletion& completion : completions.subspan(n_out, n_answers)) {
    completion.error_number = Spoil(requests_[completion.tag], completion.error_number);
  }
  n_out += n_answers;
  for (IoCompletion& completion : completions.first(n_out)) {
    Request& request = requests_[completion.tag];
    completion.tag = request.given.tag;
    request.copy.reset();
    request.used = false;
  }
  return n_out;
}

}  // namespace kvrun
