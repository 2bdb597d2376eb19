#include "runtime/store/state_format.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"

namespace kvrun {
namespace {

constexpr char kFileMagic[] = "KVRUNST\n";
constexpr char kSegmentMagic[] = "KVSEGMT\n";
constexpr size_t kMagicBytes = 8;

// Offsets of fields.
constexpr size_t kVersionAt = 8;
constexpr size_t kFlagsAt = 12;
constexpr size_t kChunkBytesAt = 16;
constexpr size_t kBlockBytesAt = 20;
constexpr size_t kFileIdAt = 24;
constexpr size_t kCipherAt = 32;
constexpr size_t kFileCheckAt = 48;
constexpr uint32_t kSealedFlag = 1;

constexpr size_t kNumberAt = 8;
constexpr size_t kPayloadBytesAt = 16;
constexpr size_t kItemsAt = 24;
constexpr size_t kChunksAt = 32;
constexpr size_t kTableCheckAt = 40;
constexpr size_t kPreviousCheckAt = 56;
constexpr size_t kSaltAt = 72;
constexpr size_t kSegmentZerosAt = 104;
constexpr size_t kSegmentCheckAt = StateSegmentHeader::kCheckAt;

// More cannot be in a file.
constexpr uint64_t kMostPayloadBytes = uint64_t{1} << 62;
// A save may have other items than the one before, all of which are gone.
constexpr uint64_t kMostItemRecords = 2 * kMostStateItems;

template <typename T>
void Store(std::span<std::byte> bytes, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes[at + i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
  }
}

template <typename T>
T Loaded(std::span<const std::byte> bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(bytes[at + i]) << (8 * i);
  return static_cast<T>(value);
}

void StoreCheck(std::span<std::byte> bytes, size_t at, const StateCheck& check) {
  std::copy(check.begin(), check.end(), bytes.begin() + static_cast<ptrdiff_t>(at));
}

StateCheck LoadedCheck(std::span<const std::byte> bytes, size_t at) {
  StateCheck check;
  std::memcpy(check.data(), bytes.data() + at, check.size());
  return check;
}

bool HoldsCheck(std::span<const std::byte> bytes, size_t at, const StateCheck& check) {
  return std::memcmp(bytes.data() + at, check.data(), check.size()) == 0;
}

bool AreZeros(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{}; });
}

StateCheck AsStateCheck(const XXH128_hash_t& hash) {
  StateCheck check;
  Store(check, 0, static_cast<uint64_t>(hash.low64));
  Store(check, 8, static_cast<uint64_t>(hash.high64));
  return check;
}

}  // namespace

StateCheck StateCheckOf(std::span<const std::byte> bytes, uint64_t file_id) {
  return AsStateCheck(XXH3_128bits_withSeed(bytes.data(), bytes.size(), file_id));
}

StateChecker::StateChecker(uint64_t file_id) : state_(XXH3_createState()) {
  KVRUN_CHECK(state_ != nullptr);  // half a KiB
  XXH3_128bits_reset_withSeed(state_.get(), file_id);
}

void StateChecker::Add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

StateCheck StateChecker::Value() const { return AsStateCheck(XXH3_128bits_digest(state_.get())); }

void StateChecker::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

std::array<std::byte, StateFileHeader::kBytes> StateFileHeader::Encode() const {
  std::array<std::byte, kBytes> bytes{};
  std::memcpy(bytes.data(), kFileMagic, kMagicBytes);
  Store(bytes, kVersionAt, kStateVersion);
  Store(bytes, kFlagsAt, is_sealed() ? kSealedFlag : 0);
  Store(bytes, kChunkBytesAt, kStateChunkBytes);
  Store(bytes, kBlockBytesAt, kStateBlockBytes);
  Store(bytes, kFileIdAt, file_id);
  Store(bytes, kCipherAt, cipher);
  StoreCheck(bytes, kFileCheckAt, StateCheckOf(std::span(bytes).first(kFileCheckAt), 0));
  return bytes;
}

bool StateFileHeader::MayBegin(std::span<const std::byte> bytes) {
  return std::memcmp(bytes.data(), kFileMagic, std::min(bytes.size(), kMagicBytes)) == 0;
}

Result<StateFileHeader> StateFileHeader::Decode(std::span<const std::byte, kBytes> bytes,
                                                const std::string& path) {
  // Damage of the first bytes leaves the others as they were; what is no session is not to be taken for one.
  const bool has_sizes = Loaded<uint32_t>(bytes, kChunkBytesAt) == kStateChunkBytes &&
                         Loaded<uint32_t>(bytes, kBlockBytesAt) == kStateBlockBytes;
  if (std::memcmp(bytes.data(), kFileMagic, kMagicBytes) != 0 && !has_sizes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is no file of a session of kvrun: name another, or remove it", path));
  }
  if (!HoldsCheck(bytes, kFileCheckAt, StateCheckOf(bytes.first(kFileCheckAt), 0))) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("the session's file {} is damaged: its header is not what was written: the "
                              "session has to be computed again, or its file copied again",
                              path));
  }
  const auto version = Loaded<uint32_t>(bytes, kVersionAt);
  if (version != kStateVersion) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("the session's file {} is of version {}, and this kvrun reads version {}: use "
                              "the kvrun that wrote it, or compute the session again",
                              path, version, kStateVersion));
  }
  const auto flags = Loaded<uint32_t>(bytes, kFlagsAt);
  if (flags != 0 && flags != kSealedFlag) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("the session's file {} is of version {} with flags {:#x}, and this kvrun reads "
                              "flags 0 and 1: use the kvrun that wrote it, or compute the session again",
                              path, version, flags));
  }
  const auto chunk_bytes = Loaded<uint32_t>(bytes, kChunkBytesAt);
  const auto block_bytes = Loaded<uint32_t>(bytes, kBlockBytesAt);
  if (chunk_bytes != kStateChunkBytes || block_bytes != kStateBlockBytes) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("the session's file {} has chunks of {} bytes and blocks of {}, and this kvrun "
                              "reads {} and {}: use the kvrun that wrote it, or compute the session again",
                              path, chunk_bytes, block_bytes, kStateChunkBytes, kStateBlockBytes));
  }
  const StateFileHeader header{Loaded<uint64_t>(bytes, kFileIdAt), Loaded<uint32_t>(bytes, kCipherAt)};
  if (header.is_sealed() == (flags == kSealedFlag)) return header;
  return Status(StatusCode::kCorrupt,
                fmt::format("the session's file {} is damaged: its header does not say whether it is "
                            "encrypted: the session has to be computed again, or its file copied again",
                            path));
}

uint64_t StateSegmentHeader::table_bytes() const {
  return n_items * StateItemRecord::kBytes + n_chunks * StateChunkRecord::kBytes;
}

uint64_t StateSegmentHeader::table_bytes_in_file() const {
  return table_bytes() + CeilDiv<uint64_t>(table_bytes(), kStateChunkBytes) * tag_bytes;
}

std::array<std::byte, StateSegmentHeader::kBytes> StateSegmentHeader::Encode(uint64_t file_id) const {
  std::array<std::byte, kBytes> bytes{};
  std::memcpy(bytes.data(), kSegmentMagic, kMagicBytes);
  Store(bytes, kNumberAt, number);
  Store(bytes, kPayloadBytesAt, payload_bytes);
  Store(bytes, kItemsAt, n_items);
  Store(bytes, kChunksAt, n_chunks);
  StoreCheck(bytes, kTableCheckAt, table_check);
  StoreCheck(bytes, kPreviousCheckAt, previous_check);
  std::copy(salt.begin(), salt.end(), bytes.begin() + kSaltAt);
  StoreCheck(bytes, kSegmentCheckAt, StateCheckOf(std::span(bytes).first(kSegmentCheckAt), file_id));
  return bytes;
}

StateCheck StateSegmentHeader::Check(uint64_t file_id) const {
  return LoadedCheck(Encode(file_id), kSegmentCheckAt);
}

StateCheck StateSegmentHeader::CheckIn(std::span<const std::byte, kBytes> bytes) {
  return LoadedCheck(bytes, kSegmentCheckAt);
}

bool StateSegmentHeader::Decode(std::span<const std::byte, kBytes> bytes, uint64_t file_id,
                                StateSegmentHeader* header) {
  const bool is_possible = TakeFields(bytes, header);
  return TakeSalt(bytes, header) && AreZeros(header->salt) && is_possible &&
         HoldsCheck(bytes, kSegmentCheckAt, StateCheckOf(bytes.first(kSegmentCheckAt), file_id));
}

bool StateSegmentHeader::TakeSalt(std::span<const std::byte, kBytes> bytes, StateSegmentHeader* header) {
  std::copy_n(bytes.begin() + kSaltAt, header->salt.size(), header->salt.begin());
  return std::memcmp(bytes.data(), kSegmentMagic, kMagicBytes) == 0 &&
         AreZeros(bytes.subspan(kSegmentZerosAt, kSegmentCheckAt - kSegmentZerosAt));
}

bool StateSegmentHeader::TakeFields(std::span<const std::byte, kBytes> bytes, StateSegmentHeader* header) {
  header->number = Loaded<uint64_t>(bytes, kNumberAt);
  header->payload_bytes = Loaded<uint64_t>(bytes, kPayloadBytesAt);
  header->n_items = Loaded<uint64_t>(bytes, kItemsAt);
  header->n_chunks = Loaded<uint64_t>(bytes, kChunksAt);
  header->table_check = LoadedCheck(bytes, kTableCheckAt);
  header->previous_check = LoadedCheck(bytes, kPreviousCheckAt);
  // Of an item one chunk may be shorter than the others, and none is empty.
  return header->payload_bytes <= kMostPayloadBytes && header->n_items <= kMostItemRecords &&
         header->n_chunks <= header->payload_bytes &&
         header->n_chunks <= header->payload_bytes / kStateChunkBytes + header->n_items;
}

std::array<std::byte, StateItemRecord::kBytes> StateItemRecord::Encode() const {
  std::array<std::byte, kBytes> bytes{};
  Store(bytes, 0, static_cast<uint16_t>(key.part));
  Store(bytes, 2, key.item);
  Store(bytes, 4, key.layer);
  Store(bytes, 8, key.stream);
  Store(bytes, 12, static_cast<uint32_t>(kind));
  Store(bytes, 16, size_bytes);
  Store(bytes, 24, n_chunks);
  return bytes;
}

bool StateItemRecord::Decode(std::span<const std::byte, kBytes> bytes, StateItemRecord* record) {
  record->key.part = static_cast<StatePart>(Loaded<uint16_t>(bytes, 0));
  record->key.item = Loaded<uint16_t>(bytes, 2);
  record->key.layer = Loaded<uint32_t>(bytes, 4);
  record->key.stream = Loaded<uint32_t>(bytes, 8);
  record->kind = static_cast<Kind>(Loaded<uint32_t>(bytes, 12));
  record->size_bytes = Loaded<uint64_t>(bytes, 16);
  record->n_chunks = Loaded<uint32_t>(bytes, 24);
  if (!AreZeros(bytes.subspan(28))) return false;
  if (record->kind == Kind::kIsGone) return record->size_bytes == 0 && record->n_chunks == 0;
  return record->kind == Kind::kIs;
}

std::array<std::byte, StateChunkRecord::kBytes> StateChunkRecord::Encode() const {
  std::array<std::byte, kBytes> bytes{};
  Store(bytes, 0, index);
  Store(bytes, 8, offset_bytes);
  StoreCheck(bytes, 16, check);
  return bytes;
}

bool StateChunkRecord::Decode(std::span<const std::byte, kBytes> bytes, StateChunkRecord* record) {
  record->index = Loaded<uint32_t>(bytes, 0);
  record->offset_bytes = Loaded<uint64_t>(bytes, 8);
  record->check = LoadedCheck(bytes, 16);
  return AreZeros(bytes.subspan(4, 4));
}

std::string StateKeyInWords(const StateKey& key) {
  return fmt::format("item {} of part {} (layer {}, stream {})", key.item, static_cast<uint16_t>(key.part),
                     key.layer, key.stream);
}

}  // namespace kvrun
