#include "runtime/jinja/marked_text.h"

#include <algorithm>

namespace kvrun {

std::string JoinPieces(const JinjaText& text) {
  std::string joined;
  for (const JinjaPiece& piece : text) joined += piece.text;
  return joined;
}

namespace jinja {

bool MarkedText::IsContent(size_t position) const {
  if (changes_.empty()) return first_is_content_;
  const auto n = std::upper_bound(changes_.begin(), changes_.end(), position) - changes_.begin();
  return first_is_content_ != (n % 2 == 1);
}

size_t MarkedText::EndOfRun(size_t position) const {
  const auto next = std::upper_bound(changes_.begin(), changes_.end(), position);
  return next == changes_.end() ? bytes_.size() : *next;
}

void MarkedText::Append(std::string_view bytes, bool is_content) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    first_is_content_ = is_content;
  } else if ((first_is_content_ != (changes_.size() % 2 == 1)) != is_content) {
    changes_.push_back(bytes_.size());
  }
  bytes_ += bytes;
}

void MarkedText::Append(const MarkedText& other) {
  if (empty()) {
    const bool was_markup = is_markup;
    *this = other;
    is_markup = was_markup;
  } else {
    Append(other, 0, other.size());
  }
}

void MarkedText::Append(const MarkedText& other, size_t begin, size_t end) {
  while (begin < end) {
    const size_t run_end = std::min(other.EndOfRun(begin), end);
    Append(other.bytes().substr(begin, run_end - begin), other.IsContent(begin));
    begin = run_end;
  }
}

MarkedText MarkedText::Slice(size_t begin, size_t end) const {
  MarkedText slice;
  slice.is_markup = is_markup;
  slice.Append(*this, begin, end);
  return slice;
}

JinjaText MarkedText::Pieces() const {
  JinjaText pieces;
  for (size_t begin = 0; begin < size();) {
    const size_t end = EndOfRun(begin);
    pieces.push_back({bytes_.substr(begin, end - begin), IsContent(begin)});
    begin = end;
  }
  return pieces;
}

}  // namespace jinja
}  // namespace kvrun
