// Merge rules of byte-level BPE, and applying them to a word. Internal to the tokenizers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/model/tokenizer_vocab.h"

namespace kvrun {

class MergeTable {
 public:
  struct Merge {
    uint64_t pair = kEmpty;
    uint32_t rank = UINT32_MAX;  // lower goes first
    TokenId merged = -1;
  };

  // tokenizer.ggml.merges: "left right", in order of rank. Those that make a reserved token are left out.
  static Result<MergeTable> Load(const GgufFile& file, const Vocab& vocab);

  const Merge* Find(TokenId left, TokenId right) const;  // null if these two do not merge

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;

  explicit MergeTable(size_t merges);
  static uint64_t PairOf(TokenId left, TokenId right);
  size_t SlotOf(uint64_t pair) const;
  void Insert(const Merge& merge);

  std::vector<Merge> slots_;  // open addressing; the size is a power of two, at most half of it in use
  uint32_t shift_ = 0;
};

// Working memory for one text. Merging a word of n symbols takes O(n log n).
class WordMerger {
 public:
  // `barred`: tokens that no merge makes (few).
  WordMerger(const MergeTable& table, std::span<const TokenId> barred) : table_(table), barred_(barred) {}

  // `symbols`: the ids of the word's bytes, -1 where the vocabulary lacks one; those are left out. Appends
  // what remains after merging.
  void Merge(std::span<const TokenId> symbols, std::vector<TokenId>* ids);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Symbol {
    TokenId id;
    uint32_t previous;
    uint32_t next;
  };
  struct Candidate {
    uint64_t order;  // rank, then position: the smallest goes first
    TokenId left;
    TokenId right;
    TokenId merged;
  };

  void Push(uint32_t left);

  const MergeTable& table_;
  std::span<const TokenId> barred_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace kvrun
