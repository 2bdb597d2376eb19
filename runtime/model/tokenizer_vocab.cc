#include "runtime/model/tokenizer_vocab.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <string>

#include "runtime/model/tokenizer_text.h"

namespace kvrun {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";
constexpr size_t kMaxTokens = size_t{1} << 24;

constexpr std::string_view kEndOfGenerationTexts[] = {
    "<|im_end|>",      "<|eot_id|>", "<|endoftext|>",
    "<|end_of_text|>", "<|eom_id|>", "</s>",
    "<end_of_turn>",   "<|end|>",    "<end_of_utterance>",
    "<turn|>",         "<|return|>", "<|call|>",
    "<|flush|>",       "<|calls|>",  "<\uff5cend\u2581of\u2581sentence\uff5c>",
};

uint32_t TextHash(std::string_view text) {
  return static_cast<uint32_t>(XXH3_64bits(text.data(), text.size()));
}

}  // namespace

Result<Vocab> Vocab::Load(const GgufFile& file, const VocabDefaults& defaults) {
  Vocab vocab;
  vocab.strips_after_control_ = defaults.strips_after_control;
  KVRUN_RETURN_IF_ERROR(vocab.LoadTexts(file));
  KVRUN_RETURN_IF_ERROR(vocab.LoadTypes(file));
  KVRUN_RETURN_IF_ERROR(vocab.LoadSpecials(file, defaults));
  return vocab;
}

Status Vocab::LoadTexts(const GgufFile& file) {
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, file.Strings(kTokensKey));
  if (texts.empty()) {
    return {StatusCode::kCorrupt,
            fmt::format("{}: {} is empty; the file has no vocabulary", file.name(), kTokensKey)};
  }
  if (texts.size() > kMaxTokens) {
    return {StatusCode::kUnsupported,
            fmt::format("{}: {} has {} entries, more than the {} that are supported", file.name(), kTokensKey,
                        texts.size(), kMaxTokens)};
  }
  size_t total_bytes = 0;
  for (const std::string_view text : texts) total_bytes += text.size();
  characters_.reserve(total_bytes);
  offsets_.reserve(texts.size() + 1);
  offsets_.push_back(0);
  for (const std::string_view text : texts) {
    characters_.insert(characters_.end(), text.begin(), text.end());
    offsets_.push_back(characters_.size());
    longest_text_bytes_ = std::max(longest_text_bytes_, text.size());
  }
  IndexTexts();
  return Status::Ok();
}

void Vocab::IndexTexts() {
  const size_t n_texts = offsets_.size() - 1;
  index_.resize(std::bit_ceil(std::max<size_t>(2 * n_texts, 16)));
  for (TokenId id = 0; static_cast<size_t>(id) < n_texts; ++id) {
    if (text(id).empty()) continue;
    const uint32_t hash = TextHash(text(id));
    index_[SlotOf(text(id), hash)] = {hash, id};
  }
}

size_t Vocab::SlotOf(std::string_view text, uint32_t hash) const {
  size_t slot = hash & (index_.size() - 1);
  for (; index_[slot].id >= 0; slot = (slot + 1) & (index_.size() - 1)) {
    if (index_[slot].hash == hash && this->text(index_[slot].id) == text) break;
  }
  return slot;
}

Status Vocab::LoadTypes(const GgufFile& file) {
  KVRUN_ASSIGN_OR_RETURN(const std::vector<int32_t> types, file.Ints(kTypesKey));
  if (types.size() + 1 != offsets_.size()) {
    return {StatusCode::kCorrupt,
            fmt::format("{}: {} has {} entries, but {} has {}; the numbers must be equal", file.name(),
                        kTypesKey, types.size(), kTokensKey, offsets_.size() - 1)};
  }
  types_.reserve(types.size());
  for (const int32_t type : types) {
    if (type < 0 || type > kMaxTokenType) {
      return {StatusCode::kCorrupt, fmt::format("{}: {} of token {} is {}; it must be from 0 to {}",
                                                file.name(), kTypesKey, types_.size(), type, kMaxTokenType)};
    }
    types_.push_back(static_cast<TokenType>(type));
  }
  return Status::Ok();
}

Result<TokenId> Vocab::SpecialId(const GgufFile& file, std::string_view key, TokenId fallback) const {
  if (!file.Has(key)) return fallback;
  KVRUN_ASSIGN_OR_RETURN(const uint32_t id, file.U32(key));
  if (id >= size()) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: {} is {}, but the vocabulary has {} tokens",
                                                    file.name(), key, id, size()));
  }
  return static_cast<TokenId>(id);
}

Status Vocab::LoadSpecials(const GgufFile& file, const VocabDefaults& defaults) {
  const auto if_of_type = [this](TokenId id, TokenType type) {
    return Contains(id) && this->type(id) == type ? id : -1;
  };
  KVRUN_ASSIGN_OR_RETURN(
      bos_, SpecialId(file, "tokenizer.ggml.bos_token_id", if_of_type(defaults.bos, TokenType::kControl)));
  KVRUN_ASSIGN_OR_RETURN(
      eos_, SpecialId(file, "tokenizer.ggml.eos_token_id", if_of_type(defaults.eos, TokenType::kControl)));
  KVRUN_ASSIGN_OR_RETURN(unknown_, SpecialId(file, "tokenizer.ggml.unknown_token_id",
                                             if_of_type(defaults.unknown, TokenType::kUnknown)));
  KVRUN_ASSIGN_OR_RETURN(add_bos_, file.BoolOr("tokenizer.ggml.add_bos_token", defaults.add_bos));
  if (defaults.must_add_bos) add_bos_ = true;
  KVRUN_ASSIGN_OR_RETURN(add_eos_, file.BoolOr("tokenizer.ggml.add_eos_token", false));
  KVRUN_ASSIGN_OR_RETURN(const TokenId end_of_turn, SpecialId(file, "tokenizer.ggml.eot_token_id", -1));
  KVRUN_ASSIGN_OR_RETURN(const TokenId end_of_message, SpecialId(file, "tokenizer.ggml.eom_token_id", -1));

  ends_generation_.assign(size(), false);
  for (const TokenId id : {eos_, end_of_turn, end_of_message}) {
    if (id >= 0) ends_generation_[static_cast<size_t>(id)] = true;
  }
  for (const std::string_view text : kEndOfGenerationTexts) {
    const TokenId id = Find(text);
    if (id < 0) continue;
    // Some files have marks as user-defined tokens; a "</s>" of that type is a tag of HTML.
    const bool mark = type(id) == TokenType::kUserDefined && text != "</s>";
    if (mark || type(id) == TokenType::kControl) ends_generation_[static_cast<size_t>(id)] = true;
  }
  // In OpenAI's form, and in Solar Open's, "<|end|>" ends a message, of which an answer has several.
  const TokenId message_end = Find("<|end|>");
  const bool has_answer_ends = (Find("<|return|>") >= 0 && Find("<|call|>") >= 0) ||
                               (Find("<|flush|>") >= 0 && Find("<|calls|>") >= 0);
  if (has_answer_ends && message_end >= 0 && message_end != eos_) {
    ends_generation_[static_cast<size_t>(message_end)] = false;
  }
  return Status::Ok();
}

std::string_view Vocab::text(TokenId id) const {
  const uint64_t begin = offsets_[static_cast<size_t>(id)];
  return {characters_.data() + begin, offsets_[static_cast<size_t>(id) + 1] - begin};
}

bool Vocab::IsReserved(TokenId id) const {
  if (type(id) == TokenType::kControl || type(id) == TokenType::kUnknown) return true;
  return IsEndOfGeneration(id) && Utf8CharacterBytes(text(id), 0) != text(id).size();
}

bool Vocab::IsPlain(TokenId id) const {
  const bool is_text = type(id) == TokenType::kNormal || type(id) == TokenType::kUserDefined ||
                       type(id) == TokenType::kUndefined;
  return is_text && !IsReserved(id);
}

// Those that begin or fill a text, not the marks of a chat, keep it.
bool Vocab::StripsAfter(TokenId id) const {
  if (!strips_after_control_ || !Contains(id) || !IsReserved(id)) return false;
  const std::string_view text = this->text(id);
  return text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
}

TokenId Vocab::Find(std::string_view text) const { return index_[SlotOf(text, TextHash(text))].id; }

}  // namespace kvrun
