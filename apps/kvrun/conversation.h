// A conversation with a model: what was said, and its tokens in a session.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/common/api.h"
#include "apps/common/progress.h"
#include "apps/kvrun/documents.h"
#include "apps/kvrun/generation.h"

namespace kvrun::cli {

struct Turn {
  std::vector<Document> documents;  // before the message, in this order
  std::string message;
  std::string answer;
  std::string reasoning;  // what the model thought before it answered
};

// What each turn is encoded and generated with.
struct ConversationOptions {
  GenerationOptions generation;
  PromptForm form;
  std::string system;  // "": none
  // What was said is kept where the session is; false: the session is kept for its documents alone.
  bool keeps_messages = true;
};

// The tokens of a conversation's beginning: the system message and the first turn's.
std::vector<int32_t> EncodeFirstTurn(const Model& model, const ConversationOptions& options,
                                     const std::vector<Document>& documents, const std::string& message);

// Not thread-safe. What it is given must outlive it.
class Conversation {
 public:
  // `documents` are part of the first message, also after a reset.
  Conversation(const ConversationOptions& options, std::vector<Document> documents, const Model& model,
               const Session& session, Progress* progress);

  // The document becomes part of the next message.
  void AddDocument(Document document);
  // Forgets the one that was added last.
  void DropDocument() { pending_.pop_back(); }

  // Reads the documents of the next message before it is there, so that its answer comes sooner. Where it is
  // interrupted or fails, Say() reads what is missing.
  void ReadAhead();

  // Answers on standard output. If it fails or is interrupted before the answer begins, the message counts as
  // not said, and its documents stay.
  Answer Say(const std::string& message);

  void Reset();

  // --- With a session that is kept (--session).
  // Goes on with the conversation that the session has, where it has one; documents that it has already are
  // not said again. Where the session has a text of another command's, and this conversation no documents of
  // its own, it goes on after that. True: it goes on.
  bool Restore();
  // A save point of the session, with what was said.
  void KeepIt();

  // The whole conversation's tokens, with documents and a message after what was said. Earlier answers are as
  // the chat template writes them: some leave out what the model thought.
  std::vector<int32_t> ContextWith(const std::vector<Document>& documents, const std::string& message) const {
    return WriteWith(documents, message).ids;
  }
  // The documents of the next message.
  const std::vector<Document>& pending() const { return pending_; }

  const std::vector<Turn>& turns() const { return turns_; }
  // Tokens of what was said so far.
  size_t n_tokens() const { return context_.size(); }
  // Tokens of the text that the session had before the conversation.
  size_t n_before() const { return before_.size(); }

 private:
  // A conversation's tokens, and the text that the template wrote for them.
  struct Written {
    std::vector<int32_t> ids;
    std::string text;
  };
  Written WriteWith(const std::vector<Document>& documents, const std::string& message) const;
  Written WriteWhole(const std::string& text) const;
  Written WriteAfter(const std::vector<int32_t>& context, const std::string& text) const;
  void Feed(const std::vector<int32_t>& context);
  bool WasSaid(const Document& document) const;

  const ConversationOptions& options_;
  const std::vector<Document> first_documents_;
  const Model& model_;
  const Session& session_;
  Progress* progress_;
  std::vector<Document> pending_;  // the next message's documents
  std::vector<Turn> turns_;
  bool has_note_ = false;         // the session's note is this conversation's
  uint64_t n_answers_ = 0;        // those that a reset made forgotten too
  std::vector<int32_t> before_;   // a text that is no conversation, which this one goes on after
  std::vector<int32_t> context_;  // every token of the conversation so far, with what was before
  std::string context_text_;      // as the template wrote it, with the last answer's text
  // What the session was fed and generated: it holds the first kvrun_session_length of these.
  std::vector<int32_t> held_;
};

}  // namespace kvrun::cli
