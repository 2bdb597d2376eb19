#include "runtime/engine/text/text_stream.h"

#include <algorithm>

namespace kvrun {

std::string_view TextStream::Append(std::string_view bytes) {
  text_.erase(0, n_handed_out_);
  n_handed_out_ = 0;
  if (stopped_) return {};
  const size_t first_new = text_.size();
  repairer_.Append(bytes, &text_);
  size_t begin = 0;
  if (FindStop(first_new, &begin)) {
    stopped_ = true;
    text_.resize(begin);
  }
  n_handed_out_ = stopped_ ? text_.size() : text_.size() - HeldBytes();
  return std::string_view(text_).substr(0, n_handed_out_);
}

std::string_view TextStream::Finish() {
  text_.erase(0, n_handed_out_);
  const size_t first_new = text_.size();
  size_t begin = 0;
  if (!stopped_) repairer_.Finish(&text_);
  if (FindStop(first_new, &begin)) {
    stopped_ = true;
    text_.resize(begin);
  }
  n_handed_out_ = text_.size();
  return text_;
}

// Where the first stop string to end at or after first_new begins.
bool TextStream::FindStop(size_t first_new, size_t* begin) const {
  for (size_t end = first_new + 1; end <= text_.size(); ++end) {
    const auto so_far = std::string_view(text_).substr(0, end);
    size_t longest = 0;
    for (const std::string& stop : stops_) {
      if (stop.size() > longest && so_far.ends_with(stop)) longest = stop.size();
    }
    if (longest > 0) {
      *begin = end - longest;
      return true;
    }
  }
  return false;
}

// The longest end of text_ that begins a stop string.
size_t TextStream::HeldBytes() const {
  size_t held = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, text_.size()); n > held; --n) {
      if (text_.ends_with(std::string_view(stop).substr(0, n))) {
        held = n;
        break;
      }
    }
  }
  return held;
}

}  // namespace kvrun
