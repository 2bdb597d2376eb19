#include "runtime/model/tokenizer_merges.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>

namespace kvrun {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr size_t kMaxMerges = size_t{1} << 24;

Status BrokenMerge(const GgufFile& file, size_t rank, std::string_view merge, std::string_view why) {
  // The text is from the file: whatever does not print is left out of the message.
  std::string shown;
  for (const char c : merge.substr(0, 64))
    shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return {StatusCode::kCorrupt,
          fmt::format("{}: {}: entry {} (\"{}\") {}", file.name(), kMergesKey, rank, shown, why)};
}

}  // namespace

MergeTable::MergeTable(size_t merges) {
  const size_t slots = std::bit_ceil(std::max<size_t>(merges * 2, 16));
  slots_.resize(slots);
  shift_ = static_cast<uint32_t>(64 - std::countr_zero(slots));
}

uint64_t MergeTable::PairOf(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Fibonacci hashing: the upper bits of the product mix both ids.
size_t MergeTable::SlotOf(uint64_t pair) const { return (pair * 0x9e3779b97f4a7c15U) >> shift_; }

void MergeTable::Insert(const Merge& merge) {
  size_t slot = SlotOf(merge.pair);
  while (slots_[slot].pair != kEmpty) {
    if (slots_[slot].pair == merge.pair) return;  // the lower rank is there already
    slot = (slot + 1) & (slots_.size() - 1);
  }
  slots_[slot] = merge;
}

const MergeTable::Merge* MergeTable::Find(TokenId left, TokenId right) const {
  if (left < 0 || right < 0) return nullptr;
  const uint64_t pair = PairOf(left, right);
  for (size_t slot = SlotOf(pair); slots_[slot].pair != kEmpty; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].pair == pair) return &slots_[slot];
  }
  return nullptr;
}

Result<MergeTable> MergeTable::Load(const GgufFile& file, const Vocab& vocab) {
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::string_view> merges, file.Strings(kMergesKey));
  if (merges.size() > kMaxMerges) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: {} has {} entries, more than the {} that are supported", file.name(),
                              kMergesKey, merges.size(), kMaxMerges));
  }
  MergeTable table(merges.size());
  std::string merged;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != std::string_view::npos) {
      return BrokenMerge(file, rank, merge, "is not two symbols with a space between them");
    }
    merged.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const TokenId left = vocab.Find(merge.substr(0, space));
    const TokenId right = vocab.Find(merge.substr(space + 1));
    const TokenId result = vocab.Find(merged);
    if (left < 0 || right < 0 || result < 0) {
      return BrokenMerge(file, rank, merge, "names a symbol that is not in the vocabulary");
    }
    if (!vocab.IsReserved(result)) table.Insert({PairOf(left, right), static_cast<uint32_t>(rank), result});
  }
  return table;
}

void WordMerger::Push(uint32_t left) {
  const Symbol& symbol = symbols_[left];
  if (symbol.next == kNone) return;
  const TokenId right = symbols_[symbol.next].id;
  const MergeTable::Merge* merge = table_.Find(symbol.id, right);
  if (merge == nullptr) return;
  if (std::find(barred_.begin(), barred_.end(), merge->merged) != barred_.end()) return;
  heap_.push_back({static_cast<uint64_t>(merge->rank) << 32 | left, symbol.id, right, merge->merged});
  std::push_heap(heap_.begin(), heap_.end(),
                 [](const Candidate& a, const Candidate& b) { return a.order > b.order; });
}

void WordMerger::Merge(std::span<const TokenId> symbols, std::vector<TokenId>* ids) {
  const auto n_symbols = static_cast<uint32_t>(symbols.size());
  symbols_.clear();
  heap_.clear();
  for (uint32_t i = 0; i < n_symbols; ++i) {
    symbols_.push_back({symbols[i], i == 0 ? kNone : i - 1, i + 1 == n_symbols ? kNone : i + 1});
  }
  for (uint32_t i = 0; i < n_symbols; ++i) Push(i);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(),
                  [](const Candidate& a, const Candidate& b) { return a.order > b.order; });
    const Candidate best = heap_.back();
    heap_.pop_back();
    const auto at = static_cast<uint32_t>(best.order);
    Symbol& left = symbols_[at];
    // Outdated where one of the two has been merged since.
    if (left.id != best.left || left.next == kNone || symbols_[left.next].id != best.right) continue;
    Symbol& right = symbols_[left.next];
    left.id = best.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next != kNone) symbols_[left.next].previous = at;
    Push(at);
    if (left.previous != kNone) Push(left.previous);
  }
  for (uint32_t i = 0; i < n_symbols && i != kNone; i = symbols_[i].next) {
    if (symbols_[i].id >= 0) ids->push_back(symbols_[i].id);
  }
}

}  // namespace kvrun
