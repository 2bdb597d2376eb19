#include "runtime/engine/text/utf8.h"

#include <fmt/format.h>

namespace kvrun {
namespace {

// More than any message of ours has; its end says what to do.
constexpr size_t kMaxMessageBytes = 1200;
constexpr size_t kBeginBytes = 400;
constexpr size_t kEndBytes = 300;

bool IsWithinCharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80; }

// `text` is valid UTF-8, and is cut between characters.
std::string WithoutMiddle(std::string_view text) {
  if (text.size() <= kMaxMessageBytes) return std::string(text);
  size_t begin = kBeginBytes;
  while (IsWithinCharacter(text[begin])) --begin;
  size_t end = text.size() - kEndBytes;
  while (end < text.size() && IsWithinCharacter(text[end])) ++end;
  return fmt::format("{}... ({} bytes left out) ...{}", text.substr(0, begin), end - begin, text.substr(end));
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  Utf8Repairer repairer;
  std::string repaired;
  repairer.Append(text, &repaired);
  repairer.Finish(&repaired);
  return repairer.n_replaced() == 0;
}

std::string RepairedUtf8(std::string_view text) {
  Utf8Repairer repairer;
  std::string repaired;
  repairer.Append(text, &repaired);
  repairer.Finish(&repaired);
  return repaired;
}

std::string MessageText(std::string_view text) {
  std::string shown;
  for (const char c : RepairedUtf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      shown += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      shown += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else {
      shown += fmt::format("\\x{:02x}", byte);
    }
  }
  return WithoutMiddle(shown);
}

void Utf8Repairer::Append(std::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (n_held_ > 0 && (byte < lowest_ || byte > highest_)) Replace(out);
    if (n_held_ == 0) {
      Begin(byte, out);
      continue;
    }
    held_[n_held_++] = c;
    lowest_ = 0x80;
    highest_ = 0xBF;
    if (n_held_ == n_needed_) {
      out->append(held_.data(), n_held_);
      n_held_ = 0;
    }
  }
}

void Utf8Repairer::Finish(std::string* out) {
  if (n_held_ > 0) Replace(out);
}

// The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
void Utf8Repairer::Begin(uint8_t byte, std::string* out) {
  if (byte < 0x80) {
    out->push_back(static_cast<char>(byte));
    return;
  }
  if (byte < 0xC2 || byte > 0xF4) {
    Replace(out);
    return;
  }
  n_needed_ = byte < 0xE0 ? 2 : (byte < 0xF0 ? 3 : 4);
  lowest_ = byte == 0xE0 ? 0xA0 : (byte == 0xF0 ? 0x90 : 0x80);
  highest_ = byte == 0xED ? 0x9F : (byte == 0xF4 ? 0x8F : 0xBF);
  held_[0] = static_cast<char>(byte);
  n_held_ = 1;
}

void Utf8Repairer::Replace(std::string* out) {
  out->append("\xEF\xBF\xBD");
  n_held_ = 0;
  ++n_replaced_;
}

}  // namespace kvrun
