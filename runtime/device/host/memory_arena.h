// Memory of parts that live equally long, such as the matrices of a model: side by side in few mappings,
// where the system may back them with huge pages. A first touch then costs a hundredth, and the parts need
// fewer entries of the TLB. A mapping goes when the last of its parts has gone.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

namespace kvrun::host {

// Zeros, which the system maps, in huge pages where it has some. Null: there is not enough memory.
std::shared_ptr<std::byte> MapZeros(uint64_t size_bytes);

class MemoryArena {
 public:
  // Zeros, aligned to 4096 bytes. Null: there is not enough memory.
  std::shared_ptr<std::byte> Allocate(uint64_t size_bytes);

 private:
  std::mutex mutex_;                  // guards what follows
  std::weak_ptr<std::byte> mapping_;  // the newest, of which there is room left
  uint64_t used_bytes_ = 0;           // of it
};

}  // namespace kvrun::host
