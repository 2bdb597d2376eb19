#include "runtime/chat/reasoning.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace kvrun {
namespace {

constexpr auto kMarks = std::to_array<ReasoningMarks>({
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<thinking>", "</thinking>"},                              // Apriel 1.5
    {"<seed:think>", "</seed:think>"},                          // Seed-OSS
    {"<mm:think>", "</mm:think>"},                              // MiniMax M3
    {"<think:opensource>", "</think:opensource>"},              // Hunyuan 3
    {"<|START_THINKING|>", "<|END_THINKING|>"},                 // Command R7B, A
    {"<|channel>thought", "<channel|>"},                        // Gemma 4
    {"<|inner_prefix|>", "<|inner_suffix|>"},                   // Apertus
    {"<|think|>", "<|end|><|begin|>assistant<|content|>"},      // Solar Open
    {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]",  // Apriel 1.6
     /*only_in_prompts=*/true},
});

// Of OpenAI's form: "<|start|>assistant<|channel|>analysis<|message|>Hm<|end|>", once more with "final".
constexpr std::string_view kMessageBegin = "<|message|>";
constexpr auto kHeaderBegins = std::to_array<std::string_view>({"<|channel|>", "<|start|>", kMessageBegin});
constexpr auto kMessageEnds =
    std::to_array<std::string_view>({"<|end|>", "<|return|>", "<|call|>", "<|eom|>", "<|eot|>", "<|start|>"});
constexpr std::string_view kPromptEnd = "<|start|>assistant";
constexpr std::string_view kOwnRecipient = "to=self";  // of another form with such messages
// A longer one is none: the text is an answer.
constexpr size_t kMostHeaderBytes = 256;
// Of a prompt's end, more than any mark has.
constexpr size_t kPromptTokens = 48;

constexpr std::string_view kSpace = " \t\r\n";

// Spelled from ids, in whose texts a mark may begin anywhere.
std::string EndOf(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt) {
  std::string text;
  const size_t first = prompt.size() - std::min(prompt.size(), kPromptTokens);
  for (const TokenId id : std::span(prompt).subspan(first)) tokenizer.AppendToken(id, true, &text);
  const size_t last = text.find_last_not_of(kSpace);
  text.resize(last == std::string::npos ? 0 : last + 1);
  return text;
}

bool IsBeginningOf(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

// How many bytes at the end of `text` may become `mark`.
size_t BytesOfBegunMark(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

size_t WithoutSpaceBehind(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpace);
  return last == std::string_view::npos ? 0 : last + 1;
}

// Whether a control token of this text is a part of some mark.
bool BelongsToMark(std::string_view text) {
  const auto is_in = [text](std::string_view mark) { return mark.find(text) != std::string_view::npos; };
  return !text.empty() &&
         (std::any_of(kMarks.begin(), kMarks.end(),
                      [&](const ReasoningMarks& marks) { return is_in(marks.open) || is_in(marks.close); }) ||
          std::any_of(kHeaderBegins.begin(), kHeaderBegins.end(), is_in) ||
          std::any_of(kMessageEnds.begin(), kMessageEnds.end(), is_in));
}

// What an answer may begin with.
enum class Beginning : uint8_t { kText, kUnknown, kOpen, kClose, kHeader };
struct FoundBeginning {
  Beginning kind = Beginning::kText;
  const ReasoningMarks* marks = nullptr;
};

FoundBeginning BeginningOf(std::string_view text, bool has_messages) {
  bool may_become_mark = false;
  for (const ReasoningMarks& marks : kMarks) {
    if (marks.only_in_prompts) continue;
    if (text.starts_with(marks.open)) return {Beginning::kOpen, &marks};
    if (text.starts_with(marks.close)) return {Beginning::kClose, &marks};
    may_become_mark = may_become_mark || IsBeginningOf(text, marks.open) || IsBeginningOf(text, marks.close);
  }
  for (const std::string_view mark : kHeaderBegins) {
    if (!has_messages) break;
    if (text.starts_with(mark)) return {Beginning::kHeader, nullptr};
    may_become_mark = may_become_mark || IsBeginningOf(text, mark);
  }
  return {may_become_mark ? Beginning::kUnknown : Beginning::kText, nullptr};
}

}  // namespace

const ReasoningMarks* FindReasoningMarks(std::string_view text) {
  const auto* const found = std::find_if(kMarks.begin(), kMarks.end(), [&](const ReasoningMarks& marks) {
    return text.find(marks.close) != std::string_view::npos;
  });
  return found == kMarks.end() ? nullptr : found;
}

void ReasoningSplitter::Held::Append(std::string_view text, bool of_control) {
  bytes += text;
  is_control.insert(is_control.end(), text.size(), of_control);
}

std::string ReasoningSplitter::Held::Take(size_t n_bytes) {
  std::string text;
  for (size_t i = 0; i < n_bytes; ++i) {
    if (!is_control[i]) text += bytes[i];
  }
  bytes.erase(0, n_bytes);
  is_control.erase(is_control.begin(), is_control.begin() + static_cast<ptrdiff_t>(n_bytes));
  return text;
}

void ReasoningSplitter::Held::DropSpace() { Take(std::min(bytes.find_first_not_of(kSpace), bytes.size())); }

ReasoningSplitter::ReasoningSplitter(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt)
    : tokenizer_(tokenizer),
      has_messages_(tokenizer.FindToken(kMessageBegin) >= 0),
      message_marks_are_control_(has_messages_ && tokenizer.IsControl(tokenizer.FindToken(kMessageBegin))) {
  const std::string end = EndOf(tokenizer, prompt);
  for (const ReasoningMarks& marks : kMarks) {
    if (!end.ends_with(marks.open)) continue;
    marks_ = &marks;
    Begin(Place::kThoughts);
  }
  if (has_messages_ && end.ends_with(kPromptEnd)) Begin(Place::kHeader);
}

ReasoningPieces ReasoningSplitter::Next(TokenId token, std::string_view text) {
  held_.Append(text, /*of_control=*/false);
  if (place_ != Place::kAnswer && token >= 0 && tokenizer_.IsControl(token)) {
    const std::string spelled = tokenizer_.DecodeToken(token, /*show_special=*/true);
    if (BelongsToMark(spelled)) held_.Append(spelled, /*of_control=*/true);
  }
  ReasoningPieces pieces;
  while (Advance(&pieces)) {
  }
  return pieces;
}

ReasoningPieces ReasoningSplitter::End() {
  ReasoningPieces pieces;
  if (place_ == Place::kHeader && IsPartOfHeader()) held_.Take(held_.bytes.size());
  const bool is_reasoning = place_ == Place::kThoughts || (place_ == Place::kMessage && is_reasoning_);
  Emit(held_.bytes.size(), is_reasoning, &pieces);
  return pieces;
}

bool ReasoningSplitter::Advance(ReasoningPieces* pieces) {
  if (drops_space_) held_.DropSpace();
  if (held_.bytes.empty()) return false;
  drops_space_ = false;
  switch (place_) {
    case Place::kStart: return AdvanceStart();
    case Place::kThoughts: return AdvanceThoughts(pieces);
    case Place::kAnswer: Emit(held_.bytes.size(), false, pieces); return false;
    case Place::kHeader: return AdvanceHeader();
    case Place::kMessage: return AdvanceMessage(pieces);
  }
  return false;
}

bool ReasoningSplitter::AdvanceStart() {
  const size_t n_space = std::min(held_.bytes.find_first_not_of(kSpace), held_.bytes.size());
  const FoundBeginning found = BeginningOf(std::string_view(held_.bytes).substr(n_space), has_messages_);
  switch (found.kind) {
    case Beginning::kUnknown: return false;
    case Beginning::kText: place_ = Place::kAnswer; return true;
    case Beginning::kOpen:
      held_.Take(n_space + found.marks->open.size());
      marks_ = found.marks;
      Begin(Place::kThoughts);
      return true;
    case Beginning::kClose:  // thoughts that the model left out
      held_.Take(n_space + found.marks->close.size());
      Begin(Place::kAnswer);
      return true;
    case Beginning::kHeader: Begin(Place::kHeader); return true;
  }
  return false;
}

bool ReasoningSplitter::AdvanceThoughts(ReasoningPieces* pieces) {
  const std::string_view text = held_.bytes;
  const size_t close = text.find(marks_->close);
  const bool has_ended = close != std::string_view::npos;
  const size_t n_known = has_ended ? close : text.size() - BytesOfBegunMark(text, marks_->close);
  const size_t n_text = WithoutSpaceBehind(text.substr(0, n_known));
  Emit(n_text, /*is_reasoning=*/true, pieces);
  if (!has_ended) return false;
  held_.Take(close - n_text + marks_->close.size());
  Begin(Place::kAnswer);
  return true;
}

bool ReasoningSplitter::AdvanceHeader() {
  const size_t begin = FindMessageMark(kMessageBegin);
  const bool is_known = begin != std::string::npos;
  // Whichever way the text comes: a mark that begins later would not be complete yet.
  if (is_known ? begin > kMostHeaderBytes : held_.bytes.size() > kMostHeaderBytes + kMessageBegin.size()) {
    place_ = Place::kAnswer;
    return true;
  }
  if (!is_known) return false;
  const std::string_view header = std::string_view(held_.bytes).substr(0, begin);
  is_reasoning_ =
      header.find("<|channel|>analysis") != std::string_view::npos || header.ends_with(kOwnRecipient);
  held_.Take(begin + kMessageBegin.size());
  begins_message_ = is_reasoning_ ? has_thoughts_ : has_answer_;
  Begin(Place::kMessage);
  return true;
}

bool ReasoningSplitter::AdvanceMessage(ReasoningPieces* pieces) {
  size_t end = std::string::npos;
  size_t n_begun = 0;
  size_t n_mark = 0;
  for (const std::string_view mark : kMessageEnds) {
    n_begun = std::max(n_begun, BytesOfBegunMark(held_.bytes, mark));
    const size_t found = FindMessageMark(mark);
    if (found >= end) continue;
    end = found;
    n_mark = mark == "<|start|>" ? 0 : mark.size();  // the next header begins with it
  }
  const bool has_ended = end != std::string::npos;
  const size_t n_known = has_ended ? end : held_.bytes.size() - n_begun;
  const size_t n_text = WithoutSpaceBehind(std::string_view(held_.bytes).substr(0, n_known));
  Emit(n_text, is_reasoning_, pieces);
  if (!has_ended) return false;
  held_.Take(end - n_text + n_mark);
  Begin(Place::kHeader);
  return true;
}

// Of one that was cut off, not a text without any.
bool ReasoningSplitter::IsPartOfHeader() const {
  return has_thoughts_ || has_answer_ ||
         std::any_of(kHeaderBegins.begin(), kHeaderBegins.end(),
                     [this](std::string_view mark) { return FindMessageMark(mark) != std::string::npos; });
}

size_t ReasoningSplitter::FindMessageMark(std::string_view mark) const {
  size_t found = held_.bytes.find(mark);
  while (found != std::string::npos && message_marks_are_control_ != held_.is_control[found]) {
    found = held_.bytes.find(mark, found + 1);
  }
  return found;
}

void ReasoningSplitter::Begin(Place place) {
  place_ = place;
  drops_space_ = true;
}

void ReasoningSplitter::Emit(size_t n_bytes, bool is_reasoning, ReasoningPieces* pieces) {
  std::string text = held_.Take(n_bytes);
  if (text.empty()) return;
  if (std::exchange(begins_message_, false)) text.insert(0, "\n\n");
  (is_reasoning ? has_thoughts_ : has_answer_) = true;
  if (pieces->empty() || pieces->back().is_reasoning != is_reasoning) pieces->push_back({"", is_reasoning});
  pieces->back().text += text;
}

}  // namespace kvrun
