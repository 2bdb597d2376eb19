#include "apps/kvrun/long_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/files.h"

namespace kvrun::cli {
namespace {

// A cut moves by at most this share of what is kept to where a line or a sentence ends.
constexpr size_t kMovesByShare = 8;
// How often the prompt is made anew, with more or less kept: what its tokens are is only known then.
constexpr int kMaxTrials = 12;

bool IsWithinCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

size_t TextBytes(const Model& model, const std::vector<int32_t>& ids) {
  size_t n_bytes = 0;
  Check(kvrun_detokenize(model.get(), ids.data(), ids.size(), nullptr, &n_bytes));
  return n_bytes;
}

// Where each token ends, by the texts of the tokens. Some vocabularies' first token loses a space that was
// put before it.
std::vector<size_t> OffsetsByTokens(const Model& model, const std::vector<int32_t>& ids) {
  std::vector<size_t> offsets = {0};
  std::unordered_map<int32_t, size_t> bytes_of;
  for (const int32_t id : ids) {
    const auto [found, is_new] = bytes_of.try_emplace(id, 0);
    if (is_new) found->second = TextBytes(model, {id, id}) - TextBytes(model, {id});
    offsets.push_back(offsets.back() + (offsets.size() == 1 ? TextBytes(model, {id}) : found->second));
  }
  return offsets;
}

// Where the tokens' texts are not the text (of bytes that the vocabulary lacks): as if all had one length.
std::vector<size_t> OffsetsByShare(size_t n_tokens, size_t n_bytes) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i <= n_tokens; ++i) {
    const double share = n_tokens == 0 ? 1.0 : static_cast<double>(i) / static_cast<double>(n_tokens);
    offsets.push_back(std::min(n_bytes, static_cast<size_t>(share * static_cast<double>(n_bytes))));
  }
  offsets.back() = n_bytes;
  return offsets;
}

// How much of each may stay, so that it is `kept` in all: the shortest as they are, the others the same.
size_t MostPerDocument(const std::vector<TokenizedText>& texts, size_t kept) {
  std::vector<size_t> sizes;
  for (const TokenizedText& text : texts) sizes.push_back(text.n_tokens());
  std::sort(sizes.begin(), sizes.end());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t share = kept / (sizes.size() - i);
    if (sizes[i] > share) return share;
    kept -= sizes[i];
  }
  return SIZE_MAX;
}

struct CutText {
  std::string text;
  size_t n_left_out = 0;
};

// A rest of an even share's division goes to nobody: it is less than one token for each document.
CutText CutMiddle(const TokenizedText& whole, size_t kept) {
  const size_t n_tokens = whole.n_tokens();
  if (n_tokens <= kept) return {whole.text(), 0};
  const size_t end = whole.GoodEnd(0, kept - kept / 2);
  const size_t begin = whole.GoodBegin(n_tokens - kept / 2, n_tokens);
  std::string text = whole.text().substr(0, whole.offset(end));
  if (!text.empty() && text.back() != '\n') text += '\n';
  text +=
      fmt::format("[... {} left out ...]\n", begin - end == 1 ? "1 token" : Grouped(begin - end) + " tokens");
  text += std::string_view(whole.text()).substr(whole.offset(begin));
  // Of a text that is shorter than the mark, all is kept.
  if (text.size() >= whole.text().size()) return {whole.text(), 0};
  return {std::move(text), begin - end};
}

// A trial of CutDocuments: what a prompt of so much is.
class Cutting {
 public:
  Cutting(const EncodeDocuments& encode, std::vector<Document> documents, std::vector<TokenizedText> texts)
      : encode_(encode), documents_(std::move(documents)), texts_(std::move(texts)) {}

  // How many tokens the prompt has if the documents keep so many.
  size_t Try(size_t kept) {
    const size_t most = MostPerDocument(texts_, kept);
    left_out_.clear();
    for (size_t i = 0; i < texts_.size(); ++i) {
      CutText cut = CutMiddle(texts_[i], most);
      documents_[i].text = std::move(cut.text);
      if (cut.n_left_out > 0) left_out_.push_back({documents_[i].name, texts_[i].n_tokens(), cut.n_left_out});
    }
    return encode_(documents_).size();
  }

  const std::vector<Document>& documents() const { return documents_; }
  const std::vector<LeftOut>& left_out() const { return left_out_; }

 private:
  const EncodeDocuments& encode_;
  std::vector<Document> documents_;
  std::vector<TokenizedText> texts_;
  std::vector<LeftOut> left_out_;
};

}  // namespace

void RefuseQuestion(size_t n_around, const PromptSpace& space) {
  throw Failure(
      KVRUN_CONTEXT_FULL,
      fmt::format("the prompt has {} tokens without any of its documents; with an answer of {} that "
                  "leaves them no room in the context of {}: give a larger --ctx, or a shorter "
                  "question",
                  n_around, space.room, space.n_ctx));
}

void AddLongOption(OptionSet* set, LongDocuments* documents, const std::string& help) {
  set->Choice("--long", &documents->way, {"cut", "split"}, help);
}

uint32_t LargestContext(const Model& model, const SharedOptions& shared) {
  return shared.ctx != 0 ? shared.ctx : kvrun_model_context_train(model.get());
}

PromptSpace SpaceForPrompt(uint32_t n_ctx, uint32_t max_tokens) {
  return {n_ctx, std::min(max_tokens == 0 ? kOpenEndedRoom : max_tokens, n_ctx / 2)};
}

std::string Grouped(uint64_t n) {
  std::string text = std::to_string(n);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

TokenizedText::TokenizedText(const Model& model, std::string text, bool parse_special)
    : text_(std::move(text)) {
  const std::vector<int32_t> ids = Tokenize(model, text_, parse_special ? KVRUN_ENCODE_PARSE_SPECIAL : 0U);
  offsets_ = OffsetsByTokens(model, ids);
  if (offsets_.back() != text_.size()) offsets_ = OffsetsByShare(ids.size(), text_.size());
}

int TokenizedText::Quality(size_t token) const {
  const size_t at = offsets_[token];
  if (at == 0 || at == text_.size()) return 3;
  if (IsWithinCharacter(text_[at])) return -1;
  const char before = text_[at - 1];
  if (before == '\n') return 3;
  const std::string_view said = std::string_view(text_).substr(0, IsSpace(before) ? at - 1 : at);
  const bool at_blank = IsSpace(before) || IsSpace(text_[at]);
  if (at_blank && !said.empty() && std::string_view(".!?").find(said.back()) != std::string_view::npos)
    return 2;
  for (const std::string_view end : {"\u3002", "\uff01", "\uff1f"}) {
    if (said.ends_with(end)) return 2;
  }
  return at_blank ? 1 : 0;
}

size_t TokenizedText::GoodEnd(size_t begin, size_t end) const {
  if (end <= begin) return begin;
  const size_t least = end - (end - begin) / kMovesByShare;
  size_t best = end;
  for (size_t token = end; token >= least && token > begin && Quality(best) < 3; --token) {
    if (Quality(token) > Quality(best)) best = token;
  }
  // Bytes of one character may be many tokens.
  while (best > begin && Quality(best) < 0) --best;
  if (best > begin) return best;
  for (best = end; Quality(best) < 0;) ++best;
  return best;
}

size_t TokenizedText::GoodBegin(size_t begin, size_t end) const {
  if (begin >= end) return end;
  const size_t most = begin + (end - begin) / kMovesByShare;
  size_t best = begin;
  for (size_t token = begin; token <= most && Quality(best) < 3; ++token) {
    if (Quality(token) > Quality(best)) best = token;
  }
  while (Quality(best) < 0) ++best;
  return best;
}

std::vector<LeftOut> CutDocuments(const Model& model, bool parse_special, const PromptSpace& space,
                                  const EncodeDocuments& encode, std::vector<Document>* documents) {
  const size_t n_whole = encode(*documents).size();
  if (n_whole <= space.limit()) return {};
  std::vector<TokenizedText> texts;
  size_t n_tokens = 0;
  for (const Document& document : *documents) {
    texts.emplace_back(model, document.text, parse_special);
    n_tokens += texts.back().n_tokens();
  }
  Cutting cutting(encode, *documents, std::move(texts));
  const size_t n_around = cutting.Try(0);
  size_t fits = 0;             // so much can be kept
  size_t too_much = n_tokens;  // and so much not
  // With the lines that say what is left out, of which there may be fewer.
  size_t kept = space.limit() - std::min<size_t>(space.limit(), n_around);
  for (int i = 0; i < kMaxTrials && n_around <= space.limit() && fits + 1 < too_much; ++i) {
    kept = std::clamp(kept, fits + 1, too_much - 1);
    const size_t now = cutting.Try(kept);
    if (now <= space.limit()) fits = kept;
    if (now == space.limit()) break;
    if (now > space.limit()) too_much = kept;
    kept = now > space.limit() ? kept - std::min(kept, now - space.limit()) : kept + (space.limit() - now);
  }
  if (fits == 0 && n_whole <= space.n_ctx) return {};  // it fits, if not with a long answer
  if (fits == 0) RefuseQuestion(n_around, space);
  cutting.Try(fits);
  *documents = cutting.documents();
  return cutting.left_out();
}

void SayLeftOut(const std::vector<LeftOut>& left_out, const PromptSpace& space) {
  for (const LeftOut& one : left_out) {
    PrintMessage(
        fmt::format("note: {} is too long for the context of {}: {} of its {} tokens, in its middle, "
                    "are left out",
                    one.name == "-" ? "standard input" : one.name, space.n_ctx, Grouped(one.n_left_out),
                    Grouped(one.n_tokens)));
  }
}

std::vector<std::string> SplitText(const Model& model, bool parse_special, const PromptSpace& space,
                                   const EncodeDocuments& encode, const std::string& text) {
  const auto n_with = [&encode](std::string piece) {
    return encode(std::vector<Document>{Document{"", std::move(piece)}}).size();
  };
  const TokenizedText whole(model, text, parse_special);
  const size_t n_around = n_with("");
  if (n_around >= space.limit() && n_with(text) <= space.n_ctx) return {text};
  if (n_around >= space.limit()) RefuseQuestion(n_around, space);
  const size_t most = space.limit() - n_around;
  std::vector<std::string> pieces;
  for (size_t begin = 0; begin < whole.n_tokens();) {
    const size_t n_left = whole.n_tokens() - begin;
    const size_t n_pieces = (n_left + most - 1) / most;
    size_t size = (n_left + n_pieces - 1) / n_pieces;
    while (true) {
      const size_t end = whole.GoodEnd(begin, begin + size);
      std::string piece = whole.text().substr(whole.offset(begin), whole.offset(end) - whole.offset(begin));
      const size_t n_now = n_with(piece);
      if (n_now <= space.limit()) {
        pieces.push_back(std::move(piece));
        begin = end;
        break;
      }
      if (size == 1) RefuseQuestion(n_around, space);
      size -= std::min(size - 1, n_now - space.limit());
    }
  }
  return pieces;
}

}  // namespace kvrun::cli
