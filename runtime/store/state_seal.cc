#include "runtime/store/state_seal.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "platform/base/check.h"

namespace kvrun {
namespace {

constexpr std::string_view kSegmentPurpose = "kvrun state segment";
constexpr size_t kKeyCheckAt = 32;
constexpr size_t kSealCheckAt = 48;

void Put(std::span<std::byte> bytes, size_t at, std::span<const std::byte> part) {
  std::copy(part.begin(), part.end(), bytes.begin() + static_cast<ptrdiff_t>(at));
}

}  // namespace

Result<StateSealHeader> StateSealHeader::Of(const SecretKey& key) {
  StateSealHeader header;
  KVRUN_RETURN_IF_ERROR(RandomBytes(header.salt));
  KVRUN_ASSIGN_OR_RETURN(header.key_check, MakeKeyCheck(key, header.salt));
  return header;
}

std::array<std::byte, StateSealHeader::kBytes> StateSealHeader::Encode(uint64_t file_id) const {
  std::array<std::byte, kBytes> bytes{};
  Put(bytes, 0, salt);
  Put(bytes, kKeyCheckAt, key_check);
  Put(bytes, kSealCheckAt, StateCheckOf(std::span(bytes).first(kSealCheckAt), file_id));
  return bytes;
}

bool StateSealHeader::Decode(std::span<const std::byte, kBytes> bytes, uint64_t file_id,
                             StateSealHeader* header) {
  std::copy_n(bytes.begin(), header->salt.size(), header->salt.begin());
  std::copy_n(bytes.begin() + kKeyCheckAt, header->key_check.size(), header->key_check.begin());
  const StateCheck check = StateCheckOf(bytes.first(kSealCheckAt), file_id);
  return std::equal(check.begin(), check.end(), bytes.begin() + kSealCheckAt);
}

Result<bool> StateSealHeader::IsOf(const SecretKey& key) const {
  KVRUN_ASSIGN_OR_RETURN(const KeyCheck check, MakeKeyCheck(key, salt));
  return check == key_check;
}

Result<StateSealer> StateSealer::Create(Cipher cipher, const SecretKey& key, uint64_t file_id) {
  KVRUN_ASSIGN_OR_RETURN(Sealer sealer, Sealer::Create(cipher, key));
  return StateSealer(key, file_id, std::move(sealer));
}

StateSealer::StateSealer(const SecretKey& key, uint64_t file_id, Sealer sealer)
    : key_(key.bytes()), file_id_(file_id), sealer_(std::move(sealer)) {}

Result<StateSalt> StateSealer::BeginSegment(uint64_t begin_bytes) {
  StateSalt salt;
  KVRUN_RETURN_IF_ERROR(RandomBytes(salt));
  KVRUN_RETURN_IF_ERROR(AddSegment(begin_bytes, salt));
  return salt;
}

Status StateSealer::AddSegment(uint64_t begin_bytes, const StateSalt& salt) {
  DropSegmentsFrom(begin_bytes);
  KVRUN_ASSIGN_OR_RETURN(SecretKey key, DeriveKey(key_, salt, kSegmentPurpose));
  segments_.push_back({begin_bytes, std::move(key)});
  return Status::Ok();
}

void StateSealer::DropSegmentsFrom(uint64_t begin_bytes) {
  while (!segments_.empty() && segments_.back().begin_bytes >= begin_bytes) segments_.pop_back();
  sealer_of_ = UINT64_MAX;
}

Status StateSealer::Prepare(uint64_t place_bytes) {
  const auto behind =
      std::upper_bound(segments_.begin(), segments_.end(), place_bytes,
                       [](uint64_t place, const Segment& segment) { return place < segment.begin_bytes; });
  KVRUN_CHECK(behind != segments_.begin());
  const Segment& segment = *std::prev(behind);
  if (sealer_of_ == segment.begin_bytes) return Status::Ok();
  sealer_of_ = UINT64_MAX;
  KVRUN_RETURN_IF_ERROR(sealer_.SetKey(segment.key));
  sealer_of_ = segment.begin_bytes;
  return Status::Ok();
}

std::array<std::byte, 8> StateSealer::Associated() const {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(file_id_ >> (8 * i));
  return bytes;
}

Status StateSealer::Seal(StateSealed what, uint64_t place_bytes, std::span<const std::byte> plain,
                         std::span<std::byte> sealed) {
  KVRUN_CHECK(sealed.size() == plain.size() + kTagBytes);
  KVRUN_RETURN_IF_ERROR(Prepare(place_bytes));
  return sealer_.Seal(MakeNonce(static_cast<uint32_t>(what), place_bytes), Associated(), plain,
                      sealed.first(plain.size()), sealed.last<kTagBytes>());
}

Status StateSealer::Open(StateSealed what, uint64_t place_bytes, std::span<const std::byte> sealed,
                         std::span<std::byte> plain) {
  KVRUN_CHECK(sealed.size() == plain.size() + kTagBytes);
  KVRUN_RETURN_IF_ERROR(Prepare(place_bytes));
  return sealer_.Open(MakeNonce(static_cast<uint32_t>(what), place_bytes), Associated(),
                      sealed.first(plain.size()), plain, sealed.last<kTagBytes>());
}

// The fields are sealed; the tag is where a plain header has its check.
Result<std::array<std::byte, StateSegmentHeader::kBytes>> StateSealer::EncodeHeader(
    const StateSegmentHeader& header, uint64_t begin_bytes) {
  using Header = StateSegmentHeader;
  auto bytes = header.Encode(file_id_);
  std::array<std::byte, Header::kFieldsBytes + kTagBytes> sealed;
  KVRUN_RETURN_IF_ERROR(Seal(StateSealed::kHeader, begin_bytes,
                             std::span(bytes).subspan(Header::kFieldsAt, Header::kFieldsBytes), sealed));
  Put(bytes, Header::kFieldsAt, std::span(sealed).first(Header::kFieldsBytes));
  Put(bytes, Header::kCheckAt, std::span(sealed).last(kTagBytes));
  return bytes;
}

bool StateSealer::DecodeHeader(std::span<const std::byte, StateSegmentHeader::kBytes> bytes,
                               uint64_t begin_bytes, StateSegmentHeader* header) {
  using Header = StateSegmentHeader;
  if (!Header::TakeSalt(bytes, header) || !AddSegment(begin_bytes, header->salt).ok()) return false;
  std::array<std::byte, Header::kFieldsBytes + kTagBytes> sealed;
  std::copy_n(bytes.begin() + Header::kFieldsAt, Header::kFieldsBytes, sealed.begin());
  Put(sealed, Header::kFieldsBytes, bytes.subspan(Header::kCheckAt));
  std::array<std::byte, Header::kBytes> plain{};
  const auto fields = std::span(plain).subspan(Header::kFieldsAt, Header::kFieldsBytes);
  header->tag_bytes = kTagBytes;
  if (Open(StateSealed::kHeader, begin_bytes, sealed, fields).ok() && Header::TakeFields(plain, header))
    return true;
  DropSegmentsFrom(begin_bytes);
  return false;
}

}  // namespace kvrun
