// From the bytes of generated tokens to text that can be shown at once.
//
// What is handed out is certain: whole, valid UTF-8 characters (invalid bytes become U+FFFD), and never the
// beginning of what may still become a stop string. The stop string that is complete first wins, the longest
// of several: so the text does not depend on how it was cut into tokens.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "runtime/engine/text/utf8.h"

namespace kvrun {

// More than most tokens have: buffers of this size do not grow while text comes.
inline constexpr size_t kUsualTextBytes = 256;

class TextStream {
 public:
  // stops: valid UTF-8, none empty; must outlive this.
  explicit TextStream(std::span<const std::string> stops) : stops_(stops) { text_.reserve(kUsualTextBytes); }

  // The text that became certain, valid until the next call. Nothing once stopped. Allocates only where more
  // than kUsualTextBytes come at once or are held back.
  std::string_view Append(std::string_view bytes);
  // The end: what was held back.
  std::string_view Finish();
  // A stop string was met; the text before it has been handed out.
  bool stopped() const { return stopped_; }

 private:
  bool FindStop(size_t first_new, size_t* begin) const;
  size_t HeldBytes() const;

  std::span<const std::string> stops_;
  Utf8Repairer repairer_;
  std::string text_;         // begins with what the last call handed out
  size_t n_handed_out_ = 0;  // bytes of it
  bool stopped_ = false;
};

}  // namespace kvrun
