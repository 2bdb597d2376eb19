// Random entries in place of computed ones: for benchmarks at depths whose prefill would take hours.
#pragma once

#include <cstdint>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/serve/prompt_records.h"

namespace kvrun {

// Entries [0, n_entries) of a sequence, their index rows, and an adapter where there is none. Any phase; what
// the sequence held is forgotten. In memory is a block of records, which is repeated.
Status FillRandomly(PromptRecords& cache, uint32_t n_layers, uint32_t sequence, uint32_t n_entries);

// The same entries of all sequences and layers of a resident cache.
Status FillRandomly(Device& device, const KvShape& shape, std::span<Buffer* const> layers,
                    uint32_t n_entries);

}  // namespace kvrun
