// A text of which each byte is form (what the template writes) or content (what stands in variables).
// Internal to the templates' interpreter.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/jinja/jinja_text.h"

namespace kvrun::jinja {

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string bytes, bool is_content) : bytes_(std::move(bytes)), first_is_content_(is_content) {}
  static MarkedText Form(std::string_view bytes) { return {std::string(bytes), false}; }

  std::string_view bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool has_content() const { return !empty() && (first_is_content_ || !changes_.empty()); }
  bool IsContent(size_t position) const;

  void Append(std::string_view bytes, bool is_content);
  void AppendForm(std::string_view bytes) { Append(bytes, false); }
  void Append(const MarkedText& other);
  // Bytes begin..end - 1 of `other`.
  void Append(const MarkedText& other, size_t begin, size_t end);
  MarkedText Slice(size_t begin, size_t end) const;

  JinjaText Pieces() const;

  // Python's Markup, which escapes what is added to it.
  bool is_markup = false;

 private:
  // The first position after `position` at which the mark changes, or size().
  size_t EndOfRun(size_t position) const;

  std::string bytes_;
  bool first_is_content_ = false;
  std::vector<size_t> changes_;  // positions, ascending, at which form and content change over
};

}  // namespace kvrun::jinja
