// What stores know of what they wrote, and how they read it: every piece (a record, a cluster, a list) has a
// checksum in memory, never in the file. One that comes back as something else is read once more, as a bit
// may have flipped on its way; if that is no better, it is an error, and is never handed out.
//
// Only decisions and words: the requests and the memory are the stores'.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "platform/base/status.h"

namespace kvrun {

inline constexpr uint32_t kNotWritten = 0;  // in place of a checksum

// XXH3, its low 32 bits; at least `least`, so that smaller numbers can say something else.
constexpr uint32_t AsChecksum(uint64_t hash, uint32_t least = kNotWritten + 1) {
  return std::max(static_cast<uint32_t>(hash), least);
}
// `seed`: where the bytes belong, so that those of another place differ.
uint32_t ChecksumOf(std::span<const std::byte> bytes, uint64_t seed, uint32_t least = kNotWritten + 1);

// What a read has met, to who checks all that is read: what did not open of a sealed file (zeros:
// SealedFile), or what a disk knows to be bad, is there, and wrong.
constexpr int ErrorOfRead(int error_number) { return error_number == EBADMSG ? 0 : error_number; }

// The pieces that were asked for together. They are looked at in their order, once all are there.
class CheckedRead {
 public:
  enum class Next : uint8_t {
    kDone,       // all pieces are right
    kReadAgain,  // first() is to be read, alone; then OnRead
    kGiveUp,     // first() to last() are an error
  };
  // Whether an error, too, may have been once only.
  enum class Errors : uint8_t { kAreFinal, kAreTriedAgain };

  // What was to be read is there, or none of it. is_right(i): whether piece i is what was written.
  template <typename IsRight>
  Next OnRead(bool is_there, uint32_t n_pieces, IsRight&& is_right, Errors errors = Errors::kAreFinal) {
    if (!is_there) return errors == Errors::kAreFinal ? Next::kGiveUp : ReadAgain();
    for (; n_right_ < n_pieces; ++n_right_, is_again_ = false) {
      if (!is_right(n_right_)) return ReadAgain();
    }
    return Next::kDone;
  }

  uint32_t first() const { return n_right_; }
  // An error of all pieces, or of one that was read alone.
  uint32_t last(uint32_t n_pieces) const { return is_again_ ? n_right_ : n_pieces - 1; }

 private:
  Next ReadAgain() {
    if (is_again_) return Next::kGiveUp;
    is_again_ = true;
    return Next::kReadAgain;
  }

  uint32_t n_right_ = 0;   // from the first on
  bool is_again_ = false;  // the next one is being read once more
};

// Errors. `what`: "layer 1, stream 0, group 2 of the KV cache"; `whole`: what has to be computed again.
Status CameBackChanged(std::string_view what, std::string_view whole);
// Of the KV cache.
Status CannotBeRead(int error_number, std::string_view what);
Status CannotBeWritten(int error_number, std::string_view what);

}  // namespace kvrun
