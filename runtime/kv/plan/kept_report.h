// What a method that evicts has kept: for statistics.
#pragma once

#include <cstdint>
#include <vector>

namespace kvrun {

// Of all lists of all layers, beside the window.
struct KeptReport {
  uint64_t original = 0;  // entries as they were stored
  uint64_t low = 0;       // entries with 8 bits
  uint64_t evicted = 0;   // since each sequence began; of its prompt, those that were not kept
  uint64_t lowered = 0;   // entries that went from one precision to the other while decoding
  // ARKV's shares of what keeps its precision, of sequence 0: [n_layers]; empty where no prompt was computed.
  std::vector<double> original_shares;
};

}  // namespace kvrun
