// The last save that a file holds, and whether what lies behind it is a save that did not end, or damage.
#pragma once

#include <cstdint>
#include <memory>

#include "platform/base/status.h"
#include "platform/io/secret_key.h"
#include "runtime/store/state_file_io.h"
#include "runtime/store/state_seal.h"
#include "runtime/store/state_tables.h"

namespace kvrun {

struct StateContents {
  uint64_t file_id = 0;
  uint64_t n_segments = 0;
  uint64_t end_bytes = 0;   // of the last segment
  uint64_t size_bytes = 0;  // of the file
  StateCheck last_check{};  // of the last segment's header
  StateTables tables;
  std::unique_ptr<StateSealer> sealer;  // of a file that is sealed
  bool has_unread_tail = false;         // the disk cannot read what lies behind the end
};

// Where the header behind the last segment is none, later blocks are searched for one: so many, and the one
// behind the segment that it may have been.
inline constexpr uint64_t kMostSearchedBlocks = uint64_t{1} << 18;

// A header is written once all else of its segment is on the disk. So a valid one whose segment is not whole,
// or does not follow the one before, is no save that did not end, nor is anything that has a valid one behind
// it: kCorrupt, never an older save.
// kInvalidArgument: the file is sealed, and `key` is null or another one; or it is plain, and there is a key.
Result<StateContents> ReadStateFile(const StateHandle& file, const SecretKey* key = nullptr);

}  // namespace kvrun
