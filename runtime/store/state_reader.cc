#include "runtime/store/state_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace kvrun {
namespace {

using SegmentHeaderBytes = std::array<std::byte, StateSegmentHeader::kBytes>;

class StateReader {
 public:
  StateReader(const StateHandle& file, const SecretKey* key) : file_(file), key_(key) {}

  Result<StateContents> Read() {
    KVRUN_ASSIGN_OR_RETURN(found_.size_bytes, file_.SizeBytes());
    std::array<std::byte, StateFileHeader::kBytes> bytes{};
    const auto begin = std::span(bytes).first(std::min<uint64_t>(found_.size_bytes, bytes.size()));
    KVRUN_RETURN_IF_ERROR(file_.Read(0, begin));
    if (begin.size() < bytes.size() && StateFileHeader::MayBegin(begin))
      return Damage("its header is cut off");
    KVRUN_ASSIGN_OR_RETURN(const StateFileHeader header, StateFileHeader::Decode(bytes, file_.path()));
    found_.file_id = header.file_id;
    KVRUN_RETURN_IF_ERROR(TakeKey(header));
    found_.end_bytes = kStateBlockBytes;
    bool is_segment = true;
    while (is_segment) {
      KVRUN_ASSIGN_OR_RETURN(is_segment, ReadSegment());
    }
    if (found_.n_segments == 0) return Damage("no whole save is in it");
    found_.tables.DropSpareMemory();
    return std::move(found_);
  }

 private:
  Status Refuse(std::string_view why) const {
    return {StatusCode::kInvalidArgument, fmt::format("the session's file {} {}", file_.path(), why)};
  }

  Status TakeKey(const StateFileHeader& header) {
    if (!header.is_sealed()) {
      if (key_ == nullptr) return Status::Ok();
      return Refuse(
          "is not encrypted, and there is a key for it: open it without a key (--session-key), or name "
          "another session");
    }
    if (key_ == nullptr)
      return Refuse(
          "is encrypted: give the key that it was made with (--session-key), or name another session");
    std::array<std::byte, StateSealHeader::kBytes> bytes{};
    KVRUN_RETURN_IF_ERROR(file_.Read(StateFileHeader::kBytes, bytes));
    StateSealHeader seal;
    if (!StateSealHeader::Decode(bytes, header.file_id, &seal))
      return Damage("its header is not what was written");
    KVRUN_ASSIGN_OR_RETURN(const bool is_its_own, seal.IsOf(*key_));
    if (!is_its_own) {
      return Refuse(
          "is encrypted under another key: give the one that it was made with (--session-key), or name "
          "another session");
    }
    if (header.cipher > UINT8_MAX) return Damage("there is no such cipher as its header names");
    KVRUN_ASSIGN_OR_RETURN(StateSealer sealer,
                           StateSealer::Create(static_cast<Cipher>(header.cipher), *key_, header.file_id));
    found_.sealer = std::make_unique<StateSealer>(std::move(sealer));
    return Status::Ok();
  }

  bool Decode(const SegmentHeaderBytes& bytes, uint64_t begin_bytes, StateSegmentHeader* header) const {
    if (found_.sealer == nullptr) return StateSegmentHeader::Decode(bytes, found_.file_id, header);
    return found_.sealer->DecodeHeader(bytes, begin_bytes, header);
  }

  Status Damage(std::string_view what) const {
    return {StatusCode::kCorrupt,
            fmt::format("the session's file {} is damaged: {}: the session has to be computed again, or its "
                        "file copied again",
                        file_.path(), what)};
  }

  // False: the file ends before it.
  Result<bool> ReadSegment() {
    StateSegment segment;
    segment.begin_bytes = found_.end_bytes;
    SegmentHeaderBytes bytes{};
    if (!HasHeaderAt(segment.begin_bytes)) return false;
    const Status status = file_.Read(segment.begin_bytes, bytes);
    if (!status.ok() && (status.code() != StatusCode::kIo || found_.n_segments == 0)) return status;
    if (!status.ok() || !Decode(bytes, segment.begin_bytes, &segment.header)) {
      if (IsFollowed(segment)) return Damage("a save in its middle is not what was written");
      found_.has_unread_tail = !status.ok();
      return false;
    }
    if (segment.header.number != found_.n_segments || segment.header.previous_check != found_.last_check) {
      return Damage("its saves do not follow one another");
    }
    if (found_.n_segments == kMostStateSegments) return Damage("it has too many saves");
    if (segment.end_bytes() > found_.size_bytes) {
      // Another process may be saving: it has grown before that header was written.
      KVRUN_ASSIGN_OR_RETURN(found_.size_bytes, file_.SizeBytes());
      if (segment.end_bytes() > found_.size_bytes) return Damage("its end is missing");
    }
    Result<StateTables> tables =
        ReadStateTables(file_, found_.file_id, segment, found_.tables, found_.sealer.get());
    // It was synced before the header was written: no save that did not end.
    if (!tables.ok() && tables.status().code() == StatusCode::kIo) {
      return Damage("a table of it cannot be read");
    }
    KVRUN_ASSIGN_OR_RETURN(found_.tables, std::move(tables));
    found_.end_bytes = segment.end_bytes();
    found_.last_check = StateSegmentHeader::CheckIn(bytes);
    ++found_.n_segments;
    return true;
  }

  bool HasHeaderAt(uint64_t begin_bytes) const {
    return begin_bytes <= found_.size_bytes && found_.size_bytes - begin_bytes >= StateSegmentHeader::kBytes;
  }

  // Whether a segment lies behind the one whose header is not valid, but may say where it ends.
  bool IsFollowed(const StateSegment& segment) const {
    const uint64_t first = segment.payload_begin_bytes();
    for (uint64_t i = 0; i < kMostSearchedBlocks && HasHeaderAt(first + i * kStateBlockBytes); ++i) {
      if (IsLaterHeaderAt(first + i * kStateBlockBytes)) return true;
    }
    return IsLaterHeaderAt(segment.end_bytes());
  }

  // What cannot be read is none.
  bool IsLaterHeaderAt(uint64_t begin_bytes) const {
    SegmentHeaderBytes bytes{};
    StateSegmentHeader header;
    return HasHeaderAt(begin_bytes) && file_.Read(begin_bytes, bytes).ok() &&
           Decode(bytes, begin_bytes, &header) && header.number >= found_.n_segments;
  }

  const StateHandle& file_;
  const SecretKey* const key_;
  StateContents found_;
};

}  // namespace

Result<StateContents> ReadStateFile(const StateHandle& file, const SecretKey* key) {
  return StateReader(file, key).Read();
}

}  // namespace kvrun
