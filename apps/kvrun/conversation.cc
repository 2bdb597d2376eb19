#include "apps/kvrun/conversation.h"

#include <algorithm>
#include <utility>

#include "apps/common/failure.h"

namespace kvrun::cli {
namespace {

size_t CommonLength(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
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
  std::vector<int32_t> context = ContextWith(pending_, message);
  Feed(context);
  context_ = std::move(context);
  turns_.push_back({std::exchange(pending_, {}), message, ""});
  GenerationOptions generation = options_.generation;
  // Otherwise the same question after a reset would always have the same answer.
  generation.values.seed += n_answers_++;
  Answer answer = std::move(Generate(session_, 1, generation, /*stream=*/true)[0]);
  context_.insert(context_.end(), answer.tokens.begin(), answer.tokens.end());
  held_ = context_;
  turns_.back().answer = answer.text;
  return answer;
}

void Conversation::Reset() {
  context_.clear();
  turns_.clear();
  pending_ = first_documents_;
  if (!first_documents_.empty()) return;  // they are in the session already, and need not be read again
  Check(kvrun_session_truncate(session_.get(), 0, 0));
  held_.clear();
}

std::vector<int32_t> Conversation::ContextWith(const std::vector<Document>& documents,
                                               const std::string& message) const {
  if (context_.empty()) return EncodeFirstTurn(model_, options_, documents, message);
  const std::string text = ComposedText(documents, message);
  std::vector<int32_t> whole = WholeContext(text);
  // Where earlier answers stay as they were, so do the tokens that the model chose for them, which another
  // encoding of the same text need not have: the session holds them.
  std::vector<int32_t> longer = context_;
  try {
    const std::vector<int32_t> turn = EncodeNextTurn(model_, options_.form, text);
    longer.insert(longer.end(), turn.begin(), turn.end());
  } catch (const Failure& failure) {
    if (failure.status() != KVRUN_UNSUPPORTED) throw;
    return whole;  // this template writes no answer as it was
  }
  return longer == whole || Detokenize(model_, longer) == Detokenize(model_, whole) ? longer : whole;
}

std::vector<int32_t> Conversation::WholeContext(const std::string& text) const {
  Json messages = Json::array();
  if (!options_.system.empty()) messages.push_back({{"role", "system"}, {"content", options_.system}});
  for (const Turn& turn : turns_) {
    messages.push_back({{"role", "user"}, {"content", ComposedText(turn.documents, turn.message)}});
    messages.push_back({{"role", "assistant"}, {"content", turn.answer}});
  }
  messages.push_back({{"role", "user"}, {"content", text}});
  return EncodeConversation(model_, options_.form, messages);
}

// Makes the session hold `context`. The session may hold more (a message that was interrupted) or less (the
// last generated token) than what was said, so the last token in common is always computed again.
void Conversation::Feed(const std::vector<int32_t>& context) {
  const size_t held = std::min<size_t>(kvrun_session_length(session_.get(), 0), CommonLength(held_, context));
  const size_t kept = held == 0 ? 0 : held - 1;
  Check(kvrun_session_truncate(session_.get(), 0, static_cast<uint32_t>(kept)));
  held_ = context;
  Check(kvrun_session_feed(session_.get(), 0, context.data() + kept, context.size() - kept));
  progress_->Clear();
}

}  // namespace kvrun::cli
