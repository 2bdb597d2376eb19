// Documents that are longer than the context: the middle left out, or the text in pieces that fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/common/api.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/documents.h"

namespace kvrun::cli {

// --long cut|split of the documents of -f. Without it, what does not fit is refused.
struct LongDocuments {
  std::string way;  // "": none was given

  bool cuts() const { return way == "cut"; }
  bool splits() const { return way == "split"; }
};
void AddLongOption(OptionSet* set, LongDocuments* documents, const std::string& help);

// How much of a context a prompt may take, so that there is room for an answer: of `room` tokens, but of no
// more than half of the context.
struct PromptSpace {
  uint32_t n_ctx;
  uint32_t room;

  uint32_t limit() const { return n_ctx - room; }
};
// max_tokens 0: no limit is known.
PromptSpace SpaceForPrompt(uint32_t n_ctx, uint32_t max_tokens);
// --ctx, or what the model was trained with.
uint32_t LargestContext(const Model& model, const SharedOptions& shared);

// A Failure: a prompt has so many tokens without its documents that these find no room.
[[noreturn]] void RefuseQuestion(size_t n_around, const PromptSpace& space);

// "12,345".
std::string Grouped(uint64_t n);

// A text, and where its tokens begin and end in it.
class TokenizedText {
 public:
  TokenizedText(const Model& model, std::string text, bool parse_special);

  const std::string& text() const { return text_; }
  size_t n_tokens() const { return offsets_.size() - 1; }
  size_t offset(size_t token) const { return offsets_[token]; }

  // Where a piece that begins with token `begin` ends well, at most at `end` and not much before: after a
  // line, else a sentence, a word, or at least a whole character. Further than `begin`, unless that is `end`.
  size_t GoodEnd(size_t begin, size_t end) const;
  // Where one that ends before `end` begins well, at least at `begin` and not much after.
  size_t GoodBegin(size_t begin, size_t end) const;

 private:
  int Quality(size_t token) const;  // of a cut before it; -1: within a character

  std::string text_;
  std::vector<size_t> offsets_;  // [n_tokens + 1]
};

// The prompt of some documents, with all that stands around them.
using EncodeDocuments = std::function<std::vector<int32_t>(const std::vector<Document>& documents)>;

struct LeftOut {
  std::string name;
  size_t n_tokens = 0;  // of the document
  size_t n_left_out = 0;
};

// Leaves out the middle of the longest documents, in whose place a line says how much it was, so that the
// prompt has as many of the space's tokens as it can. Nothing where it fits as it is, or where only the room
// for an answer does not. A Failure where there is too much around the documents.
std::vector<LeftOut> CutDocuments(const Model& model, bool parse_special, const PromptSpace& space,
                                  const EncodeDocuments& encode, std::vector<Document>* documents);
// Says it on standard error.
void SayLeftOut(const std::vector<LeftOut>& left_out, const PromptSpace& space);

// The text in pieces of about the same size with each of which the prompt fits; whole, or a Failure, as
// above.
std::vector<std::string> SplitText(const Model& model, bool parse_special, const PromptSpace& space,
                                   const EncodeDocuments& encode, const std::string& text);

}  // namespace kvrun::cli
