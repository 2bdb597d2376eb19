// Stores over real files, and records whose bytes follow from their place and version.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "platform/io/block_file.h"
#include "runtime/store/group_store.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {

inline uint64_t RecordPlace(uint32_t layer, uint32_t stream, uint32_t group) {
  return ((uint64_t{layer} << 40) + (uint64_t{stream} << 32) + group) << 20;
}

// Records side by side, as Append takes them.
inline std::vector<std::byte> MakeRecords(uint32_t record_bytes, uint32_t layer, uint32_t stream,
                                          uint32_t first, uint32_t n, uint64_t version = 0) {
  std::vector<std::byte> records(size_t{record_bytes} * n);
  for (uint32_t i = 0; i < n; ++i) {
    FillPattern(std::span(records).subspan(size_t{i} * record_bytes, record_bytes),
                RecordPlace(layer, stream, first + i), version);
  }
  return records;
}

inline bool IsRecord(const std::byte* memory, uint32_t record_bytes, uint32_t layer, uint32_t stream,
                     uint32_t group, uint64_t version = 0) {
  return HoldsPattern({memory, record_bytes}, RecordPlace(layer, stream, group), version);
}

class StoreFixture {
 public:
  // The file, or null where the machine has no such mode: the reason is in `reason`.
  std::unique_ptr<BlockFile> MakeFile(IoBackend backend, DirectIo direct, uint32_t queue_depth = 8) {
    BlockFileOptions options;
    options.folder = folder_.Path("kv");
    options.auto_backend = false;
    options.backend = backend;
    options.direct = direct;
    options.queue_depth = queue_depth;
    options.allow_tmpfs = true;
    auto made = CreateBlockFile(options);
    if (made.ok()) return std::move(made).value();
    reason = made.status().message();
    return nullptr;
  }

  std::string reason;

 private:
  TemporaryFolder folder_;
};

}  // namespace kvrun::testing
