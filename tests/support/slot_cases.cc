#include "tests/support/slot_cases.h"

#include <fmt/format.h>

#include <cstring>

#include "tests/support/beyond.h"

namespace kvrun::testing {

Buffer* Words(SelfTestRun& run, std::span<const uint32_t> words) {
  std::vector<float> floats(words.size());
  std::memcpy(floats.data(), words.data(), words.size_bytes());
  return run.Floats(floats);
}

std::vector<uint32_t> WordsOf(SelfTestRun& run, const Buffer* buffer, size_t count) {
  std::vector<uint32_t> words(count);
  if (buffer == nullptr) return words;  // the run's status says why
  const std::vector<std::byte> bytes = run.Bytes(buffer, count * sizeof(uint32_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

bool Fits(const Device& device, uint64_t size_bytes) {
  return size_bytes + kBeyond * sizeof(float) <= device.info().max_buffer_bytes;
}

std::string Describe(const KvRecordShape& record) {
  return fmt::format("{}/{}, {} heads of {}, groups of {}{}", KvTypeText(record.k_type),
                     KvTypeText(record.v_type), record.n_heads, record.head_dim, record.group_tokens,
                     record.has_positions ? " with positions" : "");
}

std::vector<std::pair<KvType, KvType>> AllKvPairs() {
  std::vector<std::pair<KvType, KvType>> pairs;
  for (const KvType k : kAllKvTypes) {
    for (const KvType v : kAllKvTypes) pairs.emplace_back(k, v);
  }
  return pairs;
}

}  // namespace kvrun::testing
