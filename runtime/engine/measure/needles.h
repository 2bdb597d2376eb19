// Sentences hidden in a long text, which are asked for at its end: a KV method cannot answer from what it has
// lost. Keys and values are random, so that nothing but the document tells the answer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/model/tokenizer.h"

namespace kvrun {

inline constexpr uint32_t kNeedlesPerDocument = 20;
// A small model copies from half of a context of 8,000 at most, however it is asked.
inline constexpr uint32_t kNeedleCopies = 3;
// Of a question and its answer. Methods that evict can be truncated by less than their window of 64 entries,
// and a document is asked about again from its end.
inline constexpr uint32_t kMaxQuestionTokens = 48;
inline constexpr uint32_t kMaxNeedles = 100'000;
inline constexpr uint32_t kMaxNeedlesPerDocument = 1000;

struct NeedleOptions {
  uint32_t n_ctx = 0;      // tokens of a document with the longest question and answer after it
  uint32_t n_needles = 0;  // of all documents, at most kMaxNeedles
  uint32_t n_per_document = kNeedlesPerDocument;  // at most so many in one
  uint32_t n_copies = kNeedleCopies;              // how often the document says each
  uint64_t seed = 0;
  uint32_t n_at_once = 1;  // NeedleEvaluation
};

// The document says the question, the value and a full stop.
struct Needle {
  std::vector<uint32_t> positions;  // of each copy's first token, in their order
  std::vector<TokenId> question;
  std::vector<TokenId> value;
};

struct NeedleDocument {
  std::vector<TokenId> ids;
  std::vector<Needle> needles;  // in the order of their first copies
};

// Shares the needles out among as few documents as hold them. A document is a part of the text: its
// beginning, or parts evenly spread over it where there are several. Where the text begins with BOS, each
// document does. All needles are said in turn, and that n_copies times; each of these sentences lies
// somewhere in its part of the document, which is cut into as many even parts as there are sentences. The
// same options and text give the same documents.
Result<std::vector<NeedleDocument>> HideNeedles(const Tokenizer& tokenizer, std::span<const TokenId> text,
                                                const NeedleOptions& options);

}  // namespace kvrun
