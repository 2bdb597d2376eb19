#include "runtime/model/tokenizer_specials.h"

#include <algorithm>
#include <functional>

namespace kvrun {
namespace {

bool Contains(std::span<const TokenId> ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

SpecialTokens::SpecialTokens(const Vocab& vocab) : vocab_(vocab) {
  for (TokenId id = 0; vocab.Contains(id); ++id) {
    const std::string_view text = vocab.text(id);
    if (text.empty()) continue;
    const bool user_defined = vocab.type(id) == TokenType::kUserDefined;
    if (user_defined && !vocab.IsReserved(id)) user_defined_.Add(text, id);
    if (user_defined || vocab.IsReserved(id)) all_.Add(text, id);
  }
  user_defined_.SortLengths();
  all_.SortLengths();
}

void SpecialTokens::Set::Add(std::string_view text, TokenId id) {
  by_text.insert_or_assign(text, id);
  lengths.push_back(text.size());
  const size_t first = static_cast<size_t>(static_cast<uint8_t>(text[0])) << 8;
  if (text.size() > 1) {
    first_two_bytes.set(first | static_cast<uint8_t>(text[1]));
  } else {
    for (size_t second = 0; second < 256; ++second) first_two_bytes.set(first | second);
  }
}

void SpecialTokens::Set::SortLengths() {
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
}

bool SpecialTokens::Set::MayStartAt(std::string_view text, size_t position) const {
  const size_t first = static_cast<size_t>(static_cast<uint8_t>(text[position])) << 8;
  // At the last byte only tokens of one byte fit; those have every second byte set.
  const size_t second = position + 1 < text.size() ? static_cast<uint8_t>(text[position + 1]) : 0;
  return first_two_bytes.test(first | second);
}

std::vector<size_t> SpecialTokens::Set::Candidates(std::string_view text) const {
  std::vector<size_t> positions;
  if (by_text.empty()) return positions;
  for (size_t i = 0; i < text.size(); ++i) {
    if (MayStartAt(text, i)) positions.push_back(i);
  }
  return positions;
}

std::vector<TextFragment> SpecialTokens::Set::Matches(std::string_view text,
                                                      std::span<const TokenId> barred) const {
  std::vector<TextFragment> matches;
  std::vector<size_t> candidates = Candidates(text);
  if (candidates.empty()) return matches;
  std::vector<bool> taken(text.size(), false);
  for (const size_t length : lengths) {
    for (const size_t begin : candidates) {
      const size_t end = begin + length;
      // What is taken so far is at least as long, so an overlap shows at one of the two ends.
      if (end > text.size() || taken[begin] || taken[end - 1]) continue;
      const auto found = by_text.find(text.substr(begin, length));
      if (found == by_text.end() || Contains(barred, found->second)) continue;
      matches.push_back({begin, end, found->second});
      std::fill(taken.begin() + static_cast<ptrdiff_t>(begin), taken.begin() + static_cast<ptrdiff_t>(end),
                true);
    }
    std::erase_if(candidates, [&](size_t begin) { return taken[begin]; });
  }
  std::sort(matches.begin(), matches.end(),
            [](const TextFragment& a, const TextFragment& b) { return a.begin < b.begin; });
  return matches;
}

std::vector<TextFragment> SpecialTokens::Partition(std::string_view text, bool parse_special,
                                                   std::span<const TokenId> barred) const {
  return Cut(text, (parse_special ? all_ : user_defined_).Matches(text, barred));
}

std::vector<TextFragment> SpecialTokens::PartitionForm(std::string_view text,
                                                       std::span<const TokenId> others) const {
  std::vector<TextFragment> matches = all_.Matches(text, {});
  std::erase_if(matches, [&](const TextFragment& match) {
    return !vocab_.IsReserved(match.token) && !Contains(others, match.token);
  });
  return Cut(text, matches);
}

std::vector<TextFragment> SpecialTokens::Cut(std::string_view text,
                                             const std::vector<TextFragment>& matches) {
  std::vector<TextFragment> fragments;
  size_t begin = 0;
  for (const TextFragment& match : matches) {
    if (match.begin > begin) fragments.push_back({begin, match.begin, -1});
    fragments.push_back(match);
    begin = match.end;
  }
  if (begin < text.size()) fragments.push_back({begin, text.size(), -1});
  return fragments;
}

}  // namespace kvrun
