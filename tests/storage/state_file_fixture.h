// What the tests of state files share: states as maps, saved and read back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/base/random.h"
#include "runtime/store/state_file.h"
#include "runtime/store/state_file_io.h"
#include "tests/storage/storage_fixture.h"

namespace kvrun::testing {

using StateBytes = std::vector<std::byte>;
using StateModel = std::map<StateKey, StateBytes>;

inline StateKey KeyOf(uint16_t item, StatePart part = StatePart::kLedger) { return {part, item, 0, 0}; }

inline StateBytes StatePattern(size_t n_bytes, uint64_t version) {
  StateBytes bytes(n_bytes);
  FillPattern(bytes, 0, version);
  return bytes;
}

inline Status SaveState(StateFile& file, const StateModel& model) {
  KVRUN_RETURN_IF_ERROR(file.BeginSave());
  for (const auto& [key, bytes] : model) KVRUN_RETURN_IF_ERROR(file.Put(key, bytes));
  return file.Commit();
}

// All that a file says that it holds.
inline Result<StateModel> LoadState(const StateFile& file) {
  StateModel model;
  Status status = Status::Ok();
  file.ForEach([&](const StateKey& key, uint64_t size_bytes) {
    StateBytes bytes(size_bytes);
    if (status.ok()) status = file.Read(key, 0, bytes);
    model[key] = std::move(bytes);
  });
  if (!status.ok()) return status;
  return model;
}

inline ::testing::AssertionResult Holds(const StateFile& file, const StateModel& model) {
  const Result<StateModel> found = LoadState(file);
  if (!found.ok()) return ::testing::AssertionFailure() << found.status().message();
  if (*found == model) return ::testing::AssertionSuccess();
  ::testing::AssertionResult failure = ::testing::AssertionFailure();
  failure << "of " << model.size() << " items there are " << found->size();
  for (const auto& [key, bytes] : model) {
    const auto same = found->find(key);
    if (same == found->end() || same->second != bytes) failure << "; item " << key.item << " differs";
  }
  return failure;
}

// Some items come, go, change in one byte, or get another size.
inline StateModel Changed(StateModel model, Random& random, uint32_t most_bytes = 3 * kStateChunkBytes) {
  for (uint32_t i = 1 + random.Below(4); i > 0; --i) {
    const StateKey key = KeyOf(static_cast<uint16_t>(random.Below(6)));
    StateBytes& bytes = model[key];
    const uint32_t kind = random.Below(5);
    if (kind == 0) {
      model.erase(key);
    } else if (kind == 1 && !bytes.empty()) {
      bytes[random.Below(static_cast<uint32_t>(bytes.size()))] ^= std::byte{1};
    } else if (kind == 2) {
      bytes.resize(random.Below(most_bytes + 1));
    } else if (kind == 3) {
      bytes.resize(size_t{random.Below(most_bytes / kStateChunkBytes + 1)} * kStateChunkBytes, std::byte{7});
    } else {
      bytes = StatePattern(random.Below(2000), random.Next());
    }
  }
  return model;
}

}  // namespace kvrun::testing
