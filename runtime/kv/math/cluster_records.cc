#include "runtime/kv/math/cluster_records.h"

#include <cstring>

#include "platform/base/check.h"

namespace kvrun {
namespace {

constexpr size_t kBytesOfWord = sizeof(uint32_t);
constexpr size_t kBytesOfHalf = sizeof(uint16_t);

// Of an entry's K or V: where its elements begin, and its scales, in bytes.
struct EntryPlace {
  size_t row = 0;
  size_t row_bytes = 0;
  size_t scales = 0;
  size_t scales_bytes = 0;
};

EntryPlace EntryPlaceOf(const KvRecordShape& shape, bool is_value, uint32_t head, uint32_t entry) {
  const KvType type = is_value ? shape.v_type : shape.k_type;
  const size_t rows_begin = is_value ? shape.v_begin_words() : 0;
  const size_t scales_begin = is_value ? shape.v_scales_begin() : 0;
  const size_t row = size_t{head} * shape.group_tokens + entry;
  return {.row = (rows_begin + row * shape.row_words(type)) * kBytesOfWord,
          .row_bytes = shape.row_words(type) * kBytesOfWord,
          .scales = shape.scales_begin_words() * kBytesOfWord +
                    (scales_begin + row * shape.row_scales(type)) * kBytesOfHalf,
          .scales_bytes = shape.row_scales(type) * kBytesOfHalf};
}

size_t PositionPlace(const KvRecordShape& shape, uint32_t entry) {
  return (size_t{shape.positions_begin_words()} + entry) * kBytesOfWord;
}

}  // namespace

void CopyEntry(const KvRecordShape& from_shape, std::span<const std::byte> from, uint32_t from_entry,
               const KvRecordShape& to_shape, std::span<std::byte> to, uint32_t to_entry) {
  KVRUN_CHECK(from_shape.n_heads == to_shape.n_heads && from_entry < from_shape.group_tokens &&
              to_entry < to_shape.group_tokens);
  for (uint32_t head = 0; head < from_shape.n_heads; ++head) {
    for (const bool is_value : {false, true}) {
      const EntryPlace source = EntryPlaceOf(from_shape, is_value, head, from_entry);
      const EntryPlace target = EntryPlaceOf(to_shape, is_value, head, to_entry);
      std::memcpy(to.data() + target.row, from.data() + source.row, target.row_bytes);
      std::memcpy(to.data() + target.scales, from.data() + source.scales, target.scales_bytes);
    }
  }
  if (from_shape.has_positions && to_shape.has_positions) {
    SetPosition(to_shape, to, to_entry, PositionOf(from_shape, from, from_entry));
  }
}

uint32_t PositionOf(const KvRecordShape& shape, std::span<const std::byte> record, uint32_t entry) {
  uint32_t position = 0;
  std::memcpy(&position, record.data() + PositionPlace(shape, entry), sizeof(position));
  return position;
}

void SetPosition(const KvRecordShape& shape, std::span<std::byte> record, uint32_t entry, uint32_t position) {
  std::memcpy(record.data() + PositionPlace(shape, entry), &position, sizeof(position));
}

}  // namespace kvrun
