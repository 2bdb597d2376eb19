#include "runtime/model/tokenizer.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/model/tokenizer_base.h"
#include "runtime/model/tokenizer_bpe.h"
#include "runtime/model/tokenizer_spm.h"

namespace kvrun {
namespace {

// Positions in a text are kept in 32 bits.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Create(const GgufFile& file) {
  KVRUN_ASSIGN_OR_RETURN(const std::string_view model, file.String("tokenizer.ggml.model"));
  if (model == "gpt2") return CreateBpeTokenizer(file);
  if (model == "llama") return CreateSpmTokenizer(file);
  return Status(
      StatusCode::kUnsupported,
      fmt::format("{}: tokenizer.ggml.model is \"{}\"; known are \"gpt2\" (byte-level BPE) and \"llama\" "
                  "(SentencePiece)",
                  file.name(), model));
}

std::string Tokenizer::DecodeToken(TokenId id, bool show_special) const {
  std::string bytes;
  AppendToken(id, show_special, &bytes);
  return bytes;
}

Result<std::vector<TokenId>> TokenizerBase::Encode(std::string_view text,
                                                   const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("cannot tokenize a text of {} bytes at once: the limit is {}; pass it in parts",
                              text.size(), kMaxTextBytes));
  }
  std::vector<TokenId> ids;
  if (options.add_special && vocab_.add_bos()) ids.push_back(vocab_.bos());
  bool first = true;
  for (const TextFragment& fragment : specials_.Partition(text, options.parse_special)) {
    if (fragment.token >= 0) {
      ids.push_back(fragment.token);
    } else {
      KVRUN_RETURN_IF_ERROR(
          EncodePlain(text.substr(fragment.begin, fragment.end - fragment.begin), first, &ids));
    }
    first = fragment.token >= 0;
  }
  if (options.add_special && vocab_.add_eos()) ids.push_back(vocab_.eos());
  return ids;
}

void TokenizerBase::AppendToken(TokenId id, bool show_special, std::string* bytes) const {
  if (!vocab_.Contains(id)) return;
  switch (vocab_.type(id)) {
    case TokenType::kControl:
    case TokenType::kUnknown:
      if (show_special) *bytes += vocab_.text(id);
      return;
    case TokenType::kUserDefined: *bytes += vocab_.text(id); return;
    case TokenType::kUnused: return;
    default: AppendPlain(id, bytes);
  }
}

std::string TokenizerBase::Decode(const std::vector<TokenId>& ids, bool show_special) const {
  std::string text;
  bool at_start = RemovesLeadingSpace();
  for (const TokenId id : ids) {
    const size_t begin = text.size();
    AppendToken(id, show_special, &text);
    const bool special = vocab_.Contains(id) &&
                         (vocab_.type(id) == TokenType::kControl || vocab_.type(id) == TokenType::kUnknown);
    if (!at_start || special || !vocab_.Contains(id)) continue;
    const bool added =
        std::string_view(text).substr(begin).starts_with(' ') && vocab_.type(id) != TokenType::kUserDefined;
    if (added) text.erase(begin, 1);
    at_start = false;
  }
  return text;
}

bool TokenizerBase::IsControl(TokenId id) const {
  return vocab_.Contains(id) && vocab_.type(id) == TokenType::kControl;
}

}  // namespace kvrun
