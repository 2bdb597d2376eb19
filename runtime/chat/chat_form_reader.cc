#include "runtime/chat/chat_form_reader.h"

#include <algorithm>
#include <utility>

namespace kvrun {
namespace {

constexpr std::string_view kDeepSeekUser = "<｜User｜>";
constexpr std::string_view kDeepSeekAssistant = "<｜Assistant｜>";

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

bool IsIdentifierCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

std::string Unescaped(std::string_view literal) {
  std::string text;
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      text += literal[i];
      continue;
    }
    const char next = literal[++i];
    text += next == 'n' ? '\n' : next == 't' ? '\t' : next == 'r' ? '\r' : next;
  }
  return text;
}

std::string WithReplaced(std::string_view text, std::string_view what, std::string_view with) {
  std::string result;
  size_t done = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, done)) {
    result.append(text, done, at - done).append(with);
    done = at + what.size();
  }
  return result.append(text, done);
}

// Tells the code of a template from its text, and in the code the strings from the rest.
class JinjaScanner {
 public:
  explicit JinjaScanner(std::string_view jinja) : jinja_(jinja) {}

  void Scan(std::vector<std::string>* literals, std::string* compact) {
    while (at_ < jinja_.size()) {
      const size_t open = std::min(NextOpening(), jinja_.size());
      if (open > at_) literals->emplace_back(jinja_.substr(at_, open - at_));
      at_ = open;
      if (at_ < jinja_.size()) ScanBlock(literals, compact);
    }
  }

 private:
  // One search for all three: a search for each would run to the end for those that are not there, each time.
  size_t NextOpening() const {
    for (size_t at = jinja_.find('{', at_); at != std::string_view::npos; at = jinja_.find('{', at + 1)) {
      const std::string_view kind = jinja_.substr(at + 1, 1);
      if (kind == "{" || kind == "%" || kind == "#") return at;
    }
    return std::string_view::npos;
  }

  void ScanBlock(std::vector<std::string>* literals, std::string* compact) {
    const char kind = jinja_[at_ + 1];
    if (kind == '#') {
      const size_t close = jinja_.find("#}", at_);
      at_ = close == std::string_view::npos ? jinja_.size() : close + 2;
      return;
    }
    const std::string_view closing = kind == '{' ? "}}" : "%}";
    at_ += 2;
    *compact += '\n';
    while (at_ < jinja_.size()) {
      if (jinja_.substr(at_, 2) == closing) {
        at_ += 2;
        return;
      }
      const char c = jinja_[at_];
      if (c == '\'' || c == '"') {
        ScanString(c, literals, compact);
      } else {
        if (!IsSpace(c)) *compact += c;
        ++at_;
      }
    }
  }

  void ScanString(char quote, std::vector<std::string>* literals, std::string* compact) {
    const size_t begin = ++at_;
    while (at_ < jinja_.size() && jinja_[at_] != quote) at_ += jinja_[at_] == '\\' ? 2 : 1;
    const size_t end = std::min(at_, jinja_.size());
    const std::string_view raw = jinja_.substr(begin, end - begin);
    literals->push_back(Unescaped(raw));
    *compact += "'" + WithReplaced(raw, "\n", "\\n") + "'";
    at_ = std::min(end + 1, jinja_.size());
  }

  std::string_view jinja_;
  size_t at_ = 0;
};

}  // namespace

ChatFormReader::ChatFormReader(std::string_view jinja, ChatTokenTexts tokens)
    : jinja_(jinja), tokens_(std::move(tokens)) {
  JinjaScanner(jinja).Scan(&literals_, &compact_);
  compact_ = WithReplaced(compact_, "['content']", ".content");
}

Result<ChatForm> ChatFormReader::Read() const {
  if (IsChatMl()) return ReadChatMl();
  if (IsLlama3()) return ReadLlama3();
  if (IsInstructed()) return Has("<<SYS>>") ? ReadLlama2() : ReadMistral();
  if (IsZephyr()) return ReadZephyr();
  if (IsDeepSeek()) return ReadDeepSeek();
  return Status(StatusCode::kUnsupported,
                "the model's chat template has none of the forms that kvrun knows (ChatML, Qwen, Llama 2, "
                "Llama 3, Mistral, Zephyr, DeepSeek R1); name one of them with --chat-template, or run "
                "without --chat, with --parse-special, and write the model's own marks into the prompt");
}

// Phi-4 writes <|im_start|>, but another separator after the role.
bool ChatFormReader::IsChatMl() const {
  return Has("<|im_start|>") && Has("<|im_end|>") && !Has("<|im_sep|>");
}

bool ChatFormReader::IsLlama3() const {
  return Has("<|start_header_id|>") && Has("<|end_header_id|>") && Has("<|eot_id|>");
}

// From version 7 on, Mistral's system message has marks of its own.
bool ChatFormReader::IsInstructed() const {
  return Has("[INST]") && Has("[/INST]") && !Has("[SYSTEM_PROMPT]");
}

// Others write <|user|> too, but only Zephyr and its kin end the user's message with EOS.
bool ChatFormReader::IsZephyr() const {
  if (!Has("<|user|>") || !Has("<|assistant|>")) return false;
  return HasCompact(R"('<|user|>\n'+message.content+eos_token)") ||
         HasCompact(R"('<|user|>\n'+message.content+'</s>')") ||
         HasCompact(R"('<|user|>\n'+message.content+'<|endoftext|>')");
}

// From V3.1 on, DeepSeek's answers begin with "</think>" where they have no thoughts.
bool ChatFormReader::IsDeepSeek() const {
  const auto writes = [this](std::string_view text) {
    return std::any_of(literals_.begin(), literals_.end(),
                       [&](const std::string& literal) { return literal.find(text) != std::string::npos; });
  };
  return writes(kDeepSeekUser) && writes(kDeepSeekAssistant) && !Has("<｜Assistant｜></think>") &&
         !HasCompact("\n'</think>'") && !HasCompact("\n-'</think>'");
}

bool ChatFormReader::TrimsContent() const {
  return HasCompact("content|trim") || HasCompact("content.strip()");
}

// The first text that is assigned to a variable whose name contains `variable_part`, if it is not empty.
std::string ChatFormReader::AssignedLiteral(std::string_view variable_part) const {
  std::string_view rest = compact_;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    // A later one is no assignment to a name alone: this one's sign stands before it.
    const size_t at = line.find("='");
    if (at == std::string_view::npos) continue;
    std::string_view target = line.substr(0, at);
    if (target.starts_with('-')) target.remove_prefix(1);
    if (!target.starts_with("set") || target.find(variable_part) == std::string_view::npos) continue;
    if (!std::all_of(target.begin(), target.end(), IsIdentifierCharacter)) continue;
    size_t end = at + 2;
    while (end < line.size() && line[end] != '\'') end += line[end] == '\\' ? 2 : 1;
    const std::string_view raw = line.substr(at + 2, end - at - 2);
    if (!raw.empty()) return Unescaped(raw);
  }
  return {};
}

void ChatFormReader::ReadDefaultSystem(ChatForm* result) const {
  constexpr std::string_view kStart = "<|im_start|>system\n";
  for (const std::string& literal : literals_) {
    const size_t start = literal.find(kStart);
    if (start == std::string::npos) continue;
    const size_t begin = start + kStart.size();
    const size_t end = literal.find("<|im_end|>", begin);
    if (end == std::string::npos) continue;
    result->default_system_ = literal.substr(begin, end - begin);
    result->inserts_system_ = true;
    return;
  }
  result->default_system_ = AssignedLiteral("system");
  result->inserts_system_ = !result->default_system_.empty();
}

ChatForm ChatFormReader::ReadChatMl() const {
  ChatForm result;
  ReadDefaultSystem(&result);
  const bool qwen_system = result.default_system_ == "You are a helpful assistant" ||
                           result.default_system_ == "You are a helpful assistant.";
  result.form_ =
      qwen_system || Has("Qwen") || Has("enable_thinking") ? KnownChatForm::kQwen : KnownChatForm::kChatMl;
  result.trims_content_ = HasCompact("message.content|trim") || HasCompact("message.content.strip()");
  result.before_role_ = std::string("<|im_start|>");
  result.after_role_ = std::string("\n");
  result.answer_end_ = std::string("<|im_end|>\n");
  const std::string thinking_start = "<|im_start|>assistant\n<think>\n";
  const bool thinks_at_once =
      std::find(literals_.begin(), literals_.end(), thinking_start) != literals_.end();
  result.answer_start_ = thinks_at_once ? thinking_start : "<|im_start|>assistant\n";
  const std::string no_thoughts = "<think>\n\n</think>\n\n";
  if (Has("enable_thinking") && std::find(literals_.begin(), literals_.end(), no_thoughts) != literals_.end())
    result.empty_thoughts_ = no_thoughts;
  result.drops_old_thoughts_ = HasCompact("split('</think>')");
  result.writes_last_thoughts_ = result.drops_old_thoughts_ && HasCompact("last_query_index");
  return result;
}

ChatForm ChatFormReader::ReadLlama3() const {
  ChatForm result;
  result.form_ = KnownChatForm::kLlama3;
  result.trims_content_ = TrimsContent();
  result.before_role_ = std::string("<|start_header_id|>");
  result.after_role_ = std::string("<|end_header_id|>\n\n");
  result.answer_end_ = std::string("<|eot_id|>");
  result.answer_start_ = std::string("<|start_header_id|>assistant<|end_header_id|>\n\n");
  for (const std::string& literal : literals_) {
    if (!literal.starts_with("Cutting Knowledge Date: ")) continue;
    result.system_preface_ = literal + "Today Date: " + AssignedLiteral("date_string") + "\n\n";
    result.inserts_system_ = true;
    break;
  }
  return result;
}

ChatForm ChatFormReader::ReadZephyr() const {
  ChatForm result;
  result.form_ = KnownChatForm::kZephyr;
  result.trims_content_ = TrimsContent();
  result.before_role_ = std::string("<|");
  result.after_role_ = std::string("|>\n");
  result.answer_end_ = tokens_.eos + "\n";
  result.answer_start_ = std::string("<|assistant|>\n");
  return result;
}

ChatForm ChatFormReader::ReadDeepSeek() const {
  const std::string thinking_start = std::string(kDeepSeekAssistant) + "<think>\n";
  ChatForm result;
  result.form_ = KnownChatForm::kDeepSeek;
  result.user_start_ = kDeepSeekUser;
  result.answer_prefix_ = kDeepSeekAssistant;
  result.answer_end_ = std::string("<｜end▁of▁sentence｜>");
  const bool thinks_at_once = std::any_of(
      literals_.begin(), literals_.end(),
      [&](const std::string& literal) { return literal.find(thinking_start) != std::string::npos; });
  result.answer_start_ = thinks_at_once ? thinking_start : std::string(kDeepSeekAssistant);
  result.drops_old_thoughts_ = HasCompact("split('</think>')");
  return result;
}

ChatForm ChatFormReader::ReadLlama2() const {
  ChatForm result;
  result.form_ = KnownChatForm::kLlama2;
  result.default_system_ = AssignedLiteral("system");
  result.inserts_system_ = !result.default_system_.empty();
  result.trims_content_ = TrimsContent();
  result.user_start_ = std::string("[INST] ");
  result.user_end_ = std::string(" [/INST]");
  result.answer_prefix_ = std::string(" ");
  result.answer_end_ = " " + tokens_.eos;
  result.turn_start_ = tokens_.bos;
  result.system_start_ = std::string("<<SYS>>\n");
  result.system_end_ = std::string("\n<</SYS>>\n\n");
  return result;
}

// The versions differ in the spaces around the marks, and in the turn that gets the system message.
ChatForm ChatFormReader::ReadMistral() const {
  constexpr size_t kLongestMark = 12;  // longer texts are messages of errors
  const auto with_spaces = [this](std::string_view mark) {
    const auto found = std::find_if(literals_.begin(), literals_.end(), [&](const std::string& literal) {
      return literal.size() <= kLongestMark && literal.find(mark) != std::string::npos;
    });
    return found == literals_.end() ? std::string(mark) : *found;
  };
  ChatForm result;
  result.form_ = KnownChatForm::kMistral;
  result.default_system_ = AssignedLiteral("system");
  result.inserts_system_ = !result.default_system_.empty();
  result.trims_content_ = HasCompact("message.content|trim");
  result.user_start_ = with_spaces("[INST]");
  result.user_end_ = with_spaces("[/INST]");
  if (HasCompact("' '+message.content")) result.answer_prefix_ = std::string(" ");
  result.answer_end_ = tokens_.eos + (HasCompact("eos_token+' '") ? " " : "");
  result.system_end_ = std::string("\n\n");
  result.system_in_last_turn_ = HasCompact("loop.lastandsystem_message");
  return result;
}

}  // namespace kvrun
