// What the tests of operations on KV records share: buffers of words, shapes, and how they are named in
// failures.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/kv_record.h"
#include "runtime/device/self_test_run.h"
#include "tests/support/slot_reference.h"

namespace kvrun::testing {

// What memory holds that an operation must leave alone.
inline constexpr uint32_t kGarbage = 0x9e3779b9;

Buffer* Words(SelfTestRun& run, std::span<const uint32_t> words);
std::vector<uint32_t> WordsOf(SelfTestRun& run, const Buffer* buffer, size_t count);
// Whether the device can bind so much and the words beyond it.
bool Fits(const Device& device, uint64_t size_bytes);

std::string Describe(const KvRecordShape& record);
std::vector<std::pair<KvType, KvType>> AllKvPairs();

}  // namespace kvrun::testing
