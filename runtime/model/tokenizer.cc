#include "runtime/model/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/model/tokenizer_base.h"
#include "runtime/model/tokenizer_bpe.h"
#include "runtime/model/tokenizer_character_bpe.h"
#include "runtime/model/tokenizer_spm.h"
#include "runtime/model/tokenizer_text.h"

namespace kvrun {
namespace {

// Positions in a text are kept in 32 bits.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// Whether a form may claim a token of this text for itself: not if it is white space, letters and digits, or
// a single character, which any content may need.
bool IsMark(std::string_view text) {
  if (Utf8CharacterBytes(text, 0) == text.size()) return false;
  return !std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ' ' ||
           (c >= '\t' && c <= '\r');
  });
}

std::string_view WithoutLeadingSpace(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
}

// The form's parts from *at on, which is moved behind them.
std::string FormRun(std::span<const TextPart> parts, size_t* at) {
  std::string run;
  for (; *at < parts.size() && parts[*at].is_form; ++*at) run += parts[*at].text;
  return run;
}

Result<std::unique_ptr<Tokenizer>> CreateOfKind(const GgufFile& file) {
  KVRUN_ASSIGN_OR_RETURN(const std::string_view model, file.String("tokenizer.ggml.model"));
  if (model == "gpt2") return CreateBpeTokenizer(file);
  if (model == "llama") return CreateSpmTokenizer(file);
  if (model == "gemma4") return CreateCharacterBpeTokenizer(file);
  return Status(StatusCode::kUnsupported,
                fmt::format("{}: tokenizer.ggml.model is \"{}\"; kvrun knows \"gpt2\" (byte-level BPE), "
                            "\"llama\" (SentencePiece) and \"gemma4\" (BPE of characters)",
                            file.name(), model));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Create(const GgufFile& file) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = CreateOfKind(file);
  if (tokenizer.ok() || tokenizer.status().code() != StatusCode::kNotFound) return tokenizer;
  return Status(StatusCode::kNotFound,
                tokenizer.status().message() +
                    ", without which there is no tokenizer; convert the model again with a "
                    "current converter, or name a file that has its vocabulary");
}

std::string Tokenizer::DecodeToken(TokenId id, bool show_special) const {
  std::string bytes;
  AppendToken(id, show_special, &bytes);
  return bytes;
}

Status TokenizerBase::CheckSize(size_t text_bytes) const {
  if (text_bytes <= kMaxTextBytes) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format("cannot tokenize a text of {} bytes at once: the limit is {}; pass it in parts",
                      text_bytes, kMaxTextBytes)};
}

Result<std::vector<TokenId>> TokenizerBase::Encode(std::string_view text,
                                                   const EncodeOptions& options) const {
  KVRUN_RETURN_IF_ERROR(CheckSize(text.size()));
  EncodedText encoded;
  if (options.add_special && vocab_.add_bos()) encoded.ids.push_back(vocab_.bos());
  KVRUN_RETURN_IF_ERROR(
      EncodeFragments(text, specials_.Partition(text, options.parse_special), {}, &encoded));
  if (options.add_special && vocab_.add_eos()) encoded.ids.push_back(vocab_.eos());
  return std::move(encoded.ids);
}

Result<uint64_t> TokenizerBase::CountLostBytes(std::string_view text, const EncodeOptions& options) const {
  if (SaysEveryByte()) return uint64_t{0};
  KVRUN_RETURN_IF_ERROR(CheckSize(text.size()));
  EncodedText encoded;
  KVRUN_RETURN_IF_ERROR(
      EncodeFragments(text, specials_.Partition(text, options.parse_special), {}, &encoded));
  return encoded.lost_bytes;
}

Status TokenizerBase::EncodeFragments(std::string_view text, std::span<const TextFragment> fragments,
                                      std::span<const TokenId> barred, EncodedText* encoded) const {
  bool first = true;
  bool strip = false;
  for (const TextFragment& fragment : fragments) {
    if (fragment.token >= 0) {
      encoded->ids.push_back(fragment.token);
    } else {
      std::string_view plain = text.substr(fragment.begin, fragment.end - fragment.begin);
      if (strip) plain = WithoutLeadingSpace(plain);
      if (!plain.empty()) KVRUN_RETURN_IF_ERROR(EncodePlain(plain, first, barred, encoded));
    }
    first = fragment.token >= 0;
    strip = vocab_.StripsAfter(fragment.token);
  }
  return Status::Ok();
}

Result<std::vector<TokenId>> TokenizerBase::EncodeParts(std::span<const TextPart> parts,
                                                        std::span<const std::string> form_texts) const {
  size_t text_bytes = 0;
  for (const TextPart& part : parts) text_bytes += part.text.size();
  KVRUN_RETURN_IF_ERROR(CheckSize(text_bytes));
  const std::vector<TokenId> barred = TokensOfForm(parts, form_texts);
  EncodedText encoded;
  std::string plain;  // since the last token of the form
  const auto encode_plain = [&] {
    std::string_view text = plain;
    if (!encoded.ids.empty() && vocab_.StripsAfter(encoded.ids.back())) text = WithoutLeadingSpace(text);
    const Status status = EncodeFragments(text, specials_.Partition(text, false, barred), barred, &encoded);
    plain.clear();
    return status;
  };
  for (size_t i = 0; i < parts.size();) {
    if (!parts[i].is_form) {
      plain += parts[i++].text;
      continue;
    }
    const std::string form = FormRun(parts, &i);
    for (const TextFragment& fragment : specials_.PartitionForm(form, barred)) {
      if (fragment.token < 0) {
        plain.append(form, fragment.begin, fragment.end - fragment.begin);
        continue;
      }
      KVRUN_RETURN_IF_ERROR(encode_plain());
      encoded.ids.push_back(fragment.token);
    }
  }
  KVRUN_RETURN_IF_ERROR(encode_plain());
  return std::move(encoded.ids);
}

std::vector<TokenId> TokenizerBase::TokensOfForm(std::span<const TextPart> parts,
                                                 std::span<const std::string> form_texts) const {
  std::vector<TokenId> tokens;
  const auto add = [&](std::string_view text) {
    for (const TextFragment& fragment : specials_.Partition(text, true)) {
      const TokenId id = fragment.token;
      if (id < 0 || vocab_.IsReserved(id) || !IsMark(vocab_.text(id))) continue;
      if (std::find(tokens.begin(), tokens.end(), id) == tokens.end()) tokens.push_back(id);
    }
  };
  for (const std::string& text : form_texts) add(text);
  for (size_t i = 0; i < parts.size();) {
    if (parts[i].is_form) {
      add(FormRun(parts, &i));
    } else {
      ++i;
    }
  }
  return tokens;
}

void TokenizerBase::AppendToken(TokenId id, bool show_special, std::string* bytes) const {
  if (!vocab_.Contains(id)) return;
  switch (vocab_.type(id)) {
    case TokenType::kControl:
    case TokenType::kUnknown:
      if (show_special) *bytes += vocab_.text(id);
      return;
    case TokenType::kUserDefined: AppendUserDefined(id, bytes); return;
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
