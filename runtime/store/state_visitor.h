// One function of each part of a session saves, loads and counts its state: it shows a visitor every item in
// turn, and the visitor reads, fills or measures it.
//
//   Status Ledger::VisitState(StateVisitor& visitor) {
//     return visitor.Vector({StatePart::kLedger, kLengths}, &lengths_, n_sequences());
//   }
//
// Threads: as of what is visited.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

#include "platform/base/saturating.h"
#include "platform/base/status.h"
#include "runtime/store/state_file.h"

namespace kvrun {

// Whether the bytes of a value are the same wherever it is saved, and any bytes are a value. A struct's
// members must be no pointers and no bool either, which cannot be seen here.
template <typename T>
inline constexpr bool kIsStateValue =
    std::endian::native == std::endian::little&& std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
    !std::is_member_pointer_v<T> && !std::is_null_pointer_v<T> &&
    !std::is_same_v<std::remove_cv_t<T>, bool> &&
    (std::has_unique_object_representations_v<T> || std::is_same_v<T, float> || std::is_same_v<T, double>);

// Each value is greater than the one before it, and less than `end`: what lists of positions and ids that
// were loaded have to be.
bool AreAscending(std::span<const uint32_t> values, uint32_t end);

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;

  // What is visited takes the values that it is shown; else it shows its own.
  virtual bool is_loading() const = 0;
  // Loading: whether the item is there.
  virtual bool Has(const StateKey& key) const = 0;
  // An item of a size that both sides know. Loading: kCorrupt where it is of another size, or not there.
  virtual Status Bytes(const StateKey& key, std::span<std::byte> bytes) = 0;
  // The size of an item, before its bytes: loading, what it is in the file, at most `most_bytes` and a
  // multiple of `unit_bytes` (else kCorrupt); else `size_bytes`.
  virtual Result<uint64_t> Size(const StateKey& key, uint64_t size_bytes, uint64_t most_bytes,
                                uint32_t unit_bytes) = 0;

  // An item that does not lie in memory as a whole: piece by piece, ascending, each but the last of
  // piece.size() bytes, a multiple of kStateChunkBytes, in this memory. Loading: `move` takes what the piece
  // holds; else it fills the piece.
  using MoveFn = std::function<Status(uint64_t offset_bytes, std::span<std::byte> piece)>;
  virtual Status Pieces(const StateKey& key, uint64_t size_bytes, std::span<std::byte> piece,
                        const MoveFn& move) = 0;

  // A number, an enum, or a struct of integers without padding.
  template <typename T>
  Status Value(const StateKey& key, T* value) {
    static_assert(kIsStateValue<T>);
    return Bytes(key, std::as_writable_bytes(std::span(value, 1)));
  }
  template <typename T>
  Status Array(const StateKey& key, std::span<T> values) {
    static_assert(kIsStateValue<T>);
    return Bytes(key, std::as_writable_bytes(values));
  }
  // Of a size that both sides know; a byte of 0 or 1 each.
  Status Flags(const StateKey& key, std::vector<bool>* flags);
  // Loading: it gets the item's size, of at most most_n elements.
  template <typename T>
  Status Vector(const StateKey& key, std::vector<T>* values, uint64_t most_n) {
    static_assert(kIsStateValue<T>);
    KVRUN_ASSIGN_OR_RETURN(const uint64_t n_bytes,
                           Size(key, values->size() * sizeof(T), SaturatingProduct({most_n, sizeof(T)}),
                                static_cast<uint32_t>(sizeof(T))));
    if (is_loading()) values->resize(n_bytes / sizeof(T));
    return Bytes(key, std::as_writable_bytes(std::span(*values)));
  }
};

// Puts all that it is shown into a save that has begun.
class StateSaver final : public StateVisitor {
 public:
  explicit StateSaver(StateFile& file) : file_(file) {}
  bool is_loading() const override { return false; }
  bool Has(const StateKey&) const override { return true; }
  Status Bytes(const StateKey& key, std::span<std::byte> bytes) override { return file_.Put(key, bytes); }
  Status Pieces(const StateKey& key, uint64_t size_bytes, std::span<std::byte> piece,
                const MoveFn& move) override;
  Result<uint64_t> Size(const StateKey&, uint64_t size_bytes, uint64_t, uint32_t) override {
    return size_bytes;
  }

 private:
  StateFile& file_;
};

// Fills all that it is shown from a file's last save.
class StateLoader final : public StateVisitor {
 public:
  explicit StateLoader(const StateFile& file) : file_(file) {}
  bool is_loading() const override { return true; }
  bool Has(const StateKey& key) const override { return file_.SizeOf(key).has_value(); }
  Status Bytes(const StateKey& key, std::span<std::byte> bytes) override;
  Status Pieces(const StateKey& key, uint64_t size_bytes, std::span<std::byte> piece,
                const MoveFn& move) override;
  Result<uint64_t> Size(const StateKey& key, uint64_t size_bytes, uint64_t most_bytes,
                        uint32_t unit_bytes) override;

 private:
  const StateFile& file_;
};

// Adds up what a save would hold.
class StateCounter final : public StateVisitor {
 public:
  bool is_loading() const override { return false; }
  bool Has(const StateKey&) const override { return true; }
  Status Bytes(const StateKey&, std::span<std::byte> bytes) override {
    size_bytes_ += bytes.size();
    return Status::Ok();
  }
  Status Pieces(const StateKey&, uint64_t size_bytes, std::span<std::byte>, const MoveFn&) override {
    size_bytes_ += size_bytes;
    return Status::Ok();
  }
  Result<uint64_t> Size(const StateKey&, uint64_t size_bytes, uint64_t, uint32_t) override {
    return size_bytes;
  }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  uint64_t size_bytes_ = 0;
};

}  // namespace kvrun
