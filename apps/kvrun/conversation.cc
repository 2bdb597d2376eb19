#include "apps/kvrun/conversation.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/kvrun/answer_output.h"

namespace kvrun::cli {
namespace {

// But for white space: templates trim answers, and some tokenizers put a space behind each control token.
bool AreAlike(std::string_view a, std::string_view b) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  const auto skip = [&](std::string_view text, size_t at) {
    while (at < text.size() && is_space(text[at])) ++at;
    return at;
  };
  size_t i = skip(a, 0);
  size_t k = skip(b, 0);
  for (; i < a.size() && k < b.size() && a[i] == b[k]; i = skip(a, i + 1), k = skip(b, k + 1)) {
  }
  return i == a.size() && k == b.size();
}

}  // namespace

std::vector<int32_t> EncodeFirstTurn(const Model& model, const ConversationOptions& options,
                                     const std::vector<Document>& documents, const std::string& message) {
  return EncodeChat(model, options.form, options.system, ComposedText(documents, message));
}

Conversation::Conversation(const ConversationOptions& options, std::vector<Document> documents,
                           const Model& model, const Session& session, Progress* progress)
    : options_(options),
      first_documents_(std::move(documents)),
      model_(model),
      session_(session),
      progress_(progress),
      pending_(first_documents_) {}

void Conversation::AddDocument(Document document) { pending_.push_back(std::move(document)); }

void Conversation::ReadAhead() {
  if (pending_.empty()) return;
  // What is the same whatever the message: Say() looks how much of it its own message has in common.
  std::vector<int32_t> context = ContextWith(pending_, "?");
  context.resize(CommonLength(context, ContextWith(pending_, "A")));
  if (context.size() > CommonLength(context, context_)) Feed(context);
}

Answer Conversation::Say(const std::string& message) {
  Written written = WriteWith(pending_, message);
  Feed(written.ids);
  context_ = std::move(written.ids);
  context_text_ = std::move(written.text);
  turns_.push_back({std::exchange(pending_, {}), message, "", ""});
  GenerationOptions generation = options_.generation;
  // Otherwise the same question after a reset would always have the same answer.
  generation.values.seed += n_answers_++;
  Answer answer = GenerateOnStdout(session_, generation, BeginReasoning(model_, context_),
                                   options_.form.shows_reasoning());
  context_.insert(context_.end(), answer.tokens.begin(), answer.tokens.end());
  context_text_ += answer.written;
  held_ = context_;
  turns_.back().answer = answer.text;
  turns_.back().reasoning = answer.reasoning;
  return answer;
}

void Conversation::Reset() {
  context_.clear();
  context_text_.clear();
  turns_.clear();
  pending_ = first_documents_;
  // They are in the session already, and need not be read again.
  if (!first_documents_.empty() || !before_.empty()) return;
  Check(kvrun_session_truncate(session_.get(), 0, 0));
  held_.clear();
}

namespace {

// What tells whether tokens are those of before: of a few bytes, and the same everywhere.
uint64_t HashOf(std::span<const int32_t> ids) {
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 1099511628211U;
    }
  }
  return hash;
}

Json JsonOf(const Turn& turn) {
  Json documents = Json::array();
  for (const Document& document : turn.documents) {
    documents.push_back({{"name", document.name}, {"text", document.text}});
  }
  return {{"documents", documents},
          {"message", turn.message},
          {"answer", turn.answer},
          {"reasoning", turn.reasoning}};
}

// Of anything: what is missing or of another kind is empty.
const Json& MemberOf(const Json& object, const char* key) {
  static const Json none;
  return object.is_object() && object.contains(key) ? object[key] : none;
}
std::string TextIn(const Json& object, const char* key) {
  const Json& field = MemberOf(object, key);
  return field.is_string() ? field.get<std::string>() : std::string();
}
uint64_t NumberIn(const Json& object, const char* key) {
  const Json& field = MemberOf(object, key);
  return field.is_number_unsigned() ? field.get<uint64_t>() : 0;
}

Turn TurnOf(const Json& json) {
  Turn turn{{}, TextIn(json, "message"), TextIn(json, "answer"), TextIn(json, "reasoning")};
  for (const Json& document : MemberOf(json, "documents")) {
    turn.documents.push_back({TextIn(document, "name"), TextIn(document, "text")});
  }
  return turn;
}

}  // namespace

// What a chat keeps beside the session's tokens. Where nothing was said, another program's note stays.
void Conversation::KeepIt() {
  if (!options_.keeps_messages || kvrun_session_is_kept(session_.get()) == 0) return;
  if (!turns_.empty() || has_note_) {
    Json turns = Json::array();
    for (const Turn& turn : turns_) turns.push_back(JsonOf(turn));
    const std::string note = DumpJson({{"chat",
                                        {{"tokens", context_.size()},
                                         {"hash", HashOf(context_)},
                                         {"before", before_.size()},
                                         {"text", context_text_},
                                         {"answers", n_answers_},
                                         {"turns", turns}}}});
    Check(kvrun_session_set_note(session_.get(), note.data(), note.size()));
    has_note_ = true;
  }
  Keep(session_);
}

// Where another text took the conversation's place, or it has to be computed again, what was said is written
// anew.
bool Conversation::Restore() {
  held_ = TokensOf(session_, 0);
  if (!options_.keeps_messages) return false;
  char* text = nullptr;
  size_t size = 0;
  Check(kvrun_session_note(session_.get(), &text, &size));
  const Json note = ParseJson(TakeText(text));
  const Json& chat = MemberOf(note, "chat");
  for (const Json& turn : MemberOf(chat, "turns")) turns_.push_back(TurnOf(turn));
  if (turns_.empty()) {
    const auto n_before = static_cast<size_t>(NumberIn(chat, "before"));
    if (first_documents_.empty()) before_ = held_;
    if (n_before > 0 && n_before < before_.size()) before_.resize(n_before);
    return !before_.empty();
  }
  has_note_ = true;
  n_answers_ = std::max<uint64_t>(NumberIn(chat, "answers"), turns_.size());
  const auto n_tokens = static_cast<size_t>(NumberIn(chat, "tokens"));
  if (n_tokens <= held_.size() && HashOf(std::span(held_).first(n_tokens)) == NumberIn(chat, "hash")) {
    context_.assign(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(n_tokens));
    context_text_ = TextIn(chat, "text");
    before_ = context_;
    before_.resize(std::min<size_t>(NumberIn(chat, "before"), context_.size()));
  }
  std::erase_if(pending_, [this](const Document& document) { return WasSaid(document); });
  return true;
}

bool Conversation::WasSaid(const Document& document) const {
  const auto is_it = [&document](const Document& said) { return said.text == document.text; };
  return std::any_of(turns_.begin(), turns_.end(), [&is_it](const Turn& turn) {
    return std::any_of(turn.documents.begin(), turn.documents.end(), is_it);
  });
}

Conversation::Written Conversation::WriteWith(const std::vector<Document>& documents,
                                              const std::string& message) const {
  const std::string text = ComposedText(documents, message);
  if (!before_.empty()) return WriteAfter(context_.empty() ? before_ : context_, text);
  if (context_.empty() && !turns_.empty()) return WriteWhole(text);
  if (context_.empty()) {
    std::vector<int32_t> first = EncodeFirstTurn(model_, options_, documents, message);
    std::string written = Detokenize(model_, first);
    return {std::move(first), std::move(written)};
  }
  Written whole = WriteWhole(text);
  // Where the template leaves earlier answers as they were, so do the tokens that the model chose for them
  // stay, which another encoding of the same text need not have: the session holds them.
  try {
    Written longer = WriteAfter(context_, text);
    if (AreAlike(whole.text, context_text_ + longer.text)) whole.ids = std::move(longer.ids);
  } catch (const Failure& failure) {
    if (failure.status() != KVRUN_UNSUPPORTED) throw;  // this template writes no answer as it was
  }
  return whole;
}

// All tokens, but the text of the new turn alone.
Conversation::Written Conversation::WriteAfter(const std::vector<int32_t>& context,
                                               const std::string& text) const {
  Written longer{context, ""};
  const std::vector<int32_t> turn = EncodeNextTurn(model_, options_.form, text);
  longer.ids.insert(longer.ids.end(), turn.begin(), turn.end());
  longer.text = Detokenize(model_, longer.ids).substr(Detokenize(model_, context).size());
  return longer;
}

Conversation::Written Conversation::WriteWhole(const std::string& text) const {
  Json messages = Json::array();
  if (!options_.system.empty()) messages.push_back({{"role", "system"}, {"content", options_.system}});
  for (const Turn& turn : turns_) {
    messages.push_back({{"role", "user"}, {"content", ComposedText(turn.documents, turn.message)}});
    messages.push_back({{"role", "assistant"}, {"content", turn.answer}});
    if (!turn.reasoning.empty()) messages.back()["reasoning_content"] = turn.reasoning;
  }
  messages.push_back({{"role", "user"}, {"content", text}});
  std::vector<int32_t> ids = EncodeConversation(model_, options_.form, messages);
  std::string written = Detokenize(model_, ids);
  return {std::move(ids), std::move(written)};
}

// Makes the session hold `context`. The session may hold more (a message that was interrupted) or less (the
// last generated token) than what was said, so the last token in common is always computed again.
void Conversation::Feed(const std::vector<int32_t>& context) {
  const size_t held = std::min<size_t>(kvrun_session_length(session_.get(), 0), CommonLength(held_, context));
  const size_t kept = held == 0 ? 0 : held - 1;
  held_ = context;
  const std::string why_anew = FeedFrom(session_, context, kept);
  progress_->Clear();
  if (!why_anew.empty()) PrintMessage("note: the text was read again from its beginning: " + why_anew);
}

}  // namespace kvrun::cli
