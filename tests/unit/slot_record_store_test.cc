#include "runtime/kv/memory/slot_record_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/device/host/host_device.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

TEST(SlotRecordStore, KeepsEachGroupInItsOwnSlot) {
  const auto device = OrDie(host::HostDevice::Create({}));
  SlotShape shape;
  shape.record = {KvType::kFp8, KvType::kFp8, 2, 8, 4};
  shape.n_streams = 2;
  shape.n_slots = 5;
  const size_t record_bytes = shape.record.size_bytes();
  SlotRecordStore store(shape, 2);
  std::vector<std::unique_ptr<Buffer>> slots;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    slots.push_back(OrDie(device->CreateBuffer(shape.size_bytes(), BufferUse::kShared, "kv")));
    store.SetSlots(layer, slots.back().get());
  }
  std::vector<std::byte> records(3 * record_bytes);
  for (size_t i = 0; i < records.size(); ++i) records[i] = static_cast<std::byte>(i % 251 + 1);
  ASSERT_TRUE(store.Append(1, 1, 2, records).ok());  // groups 2, 3 and 4
  ASSERT_TRUE(store.Flush().ok());
  const std::byte* const in_slots = slots[1]->host().data() + 7 * record_bytes;
  EXPECT_TRUE(std::equal(records.begin(), records.end(), in_slots));

  std::vector<std::byte> read(2 * record_bytes);
  const GroupFetch fetches[] = {{0, 2, read.data()}, {1, 4, read.data() + record_bytes}};
  ASSERT_TRUE(store.Fetch(1, fetches).ok());
  EXPECT_TRUE(
      std::all_of(read.begin(), read.begin() + record_bytes, [](std::byte x) { return x == std::byte{0}; }));
  EXPECT_TRUE(std::equal(read.begin() + record_bytes, read.end(), records.begin() + 2 * record_bytes));

  ASSERT_TRUE(store.Truncate(1, 3).ok());
  ASSERT_TRUE(store.Append(1, 1, 3, std::span(records).first(record_bytes)).ok());
  EXPECT_TRUE(std::equal(in_slots + record_bytes, in_slots + 2 * record_bytes, records.begin()));
}

}  // namespace
}  // namespace kvrun::testing
