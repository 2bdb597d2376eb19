// A visitor that says how far another one is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "platform/base/status.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

// In bytes of items; answers true to cancel.
using StateProgress = std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>;

// Shows `visitor` all that it is shown, and asks `progress` after items, or pieces of one, about a hundred
// times in all. Cancelled, what is visited answers kCancelled. Both must outlive it.
class TellingVisitor final : public StateVisitor {
 public:
  TellingVisitor(StateVisitor& visitor, uint64_t total_bytes, const StateProgress& progress)
      : visitor_(visitor), progress_(progress), total_bytes_(total_bytes) {}

  bool is_loading() const override { return visitor_.is_loading(); }
  bool Has(const StateKey& key) const override { return visitor_.Has(key); }
  Status Bytes(const StateKey& key, std::span<std::byte> bytes) override;
  Result<uint64_t> Size(const StateKey& key, uint64_t size_bytes, uint64_t most_bytes,
                        uint32_t unit_bytes) override {
    return visitor_.Size(key, size_bytes, most_bytes, unit_bytes);
  }
  Status Pieces(const StateKey& key, uint64_t size_bytes, std::span<std::byte> piece,
                const MoveFn& move) override;
  // All is done, which is said once. kCancelled as well.
  Status End();

 private:
  Status Note(uint64_t bytes);
  Status Tell();

  StateVisitor& visitor_;
  const StateProgress& progress_;
  const uint64_t total_bytes_;
  uint64_t done_bytes_ = 0;
  uint64_t told_bytes_ = 0;
};

}  // namespace kvrun
