#include "tests/support/chat_vocabularies.h"

#include <fmt/format.h>

#include <set>

#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer_text.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

constexpr int32_t kNormal = 1;
constexpr int32_t kUnknown = 2;
constexpr int32_t kControl = 3;
constexpr int32_t kUserDefined = 4;
constexpr int32_t kByte = 6;

struct Tokens {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  std::vector<float> scores;
  std::set<std::string> known;

  uint32_t Add(const std::string& text, int32_t type) {
    known.insert(text);
    texts.push_back(text);
    types.push_back(type);
    scores.push_back(-static_cast<float>(texts.size()));
    return static_cast<uint32_t>(texts.size() - 1);
  }
  void AddOnce(const std::string& text, int32_t type) {
    if (!known.contains(text)) Add(text, type);
  }
  std::unique_ptr<Tokenizer> Open(GgufBuilder* builder) const {
    builder->SetStrings("tokenizer.ggml.tokens", texts).SetArray("tokenizer.ggml.token_type", types);
    const Bytes bytes = builder->Build();
    const std::unique_ptr<GgufFile> file = OrDie(GgufFile::Parse(bytes, "marks.gguf"));
    return OrDie(Tokenizer::Create(*file));
  }
};

int32_t TypeOf(MarkType type) { return type == MarkType::kControl ? kControl : kUserDefined; }

const std::vector<std::string>& Words() {
  static const std::vector<std::string> words = {"the", "end", "user", "assistant", "system", "Hi", "think"};
  return words;
}

const std::vector<std::string>& Spaces() {
  static const std::vector<std::string> spaces = {"\n\n", "\n\n\n", "\t\t"};
  return spaces;
}

}  // namespace

const std::vector<std::string>& ChatMarks() {
  static const std::vector<std::string> marks = {
      "<|im_start|>",
      "<|im_end|>",
      "<|endoftext|>",
      "<|start_header_id|>",
      "<|end_header_id|>",
      "<|eot_id|>",
      "<|user|>",
      "<|assistant|>",
      "<|system|>",
      "[INST]",
      "[/INST]",
      "<<SYS>>",
      "<</SYS>>",
      "<think>",
      "</think>",
      "<｜begin▁of▁sentence｜>",
      "<｜end▁of▁sentence｜>",
      "<｜User｜>",
      "<｜Assistant｜>",
  };
  return marks;
}

std::unique_ptr<Tokenizer> BpeWithMarks(MarkType type, const std::vector<std::string>& marks) {
  Tokens tokens;
  std::vector<std::string> merges;
  const ByteAlphabet& alphabet = ByteAlphabet::Get();
  for (unsigned byte = 0; byte < 256; ++byte) {
    tokens.Add(std::string(alphabet.CharacterOf(static_cast<uint8_t>(byte))), kNormal);
  }
  const auto add_merged = [&](const std::string& text, int32_t of_whole) {
    std::string left(alphabet.CharacterOf(static_cast<uint8_t>(text[0])));
    for (size_t i = 1; i < text.size(); ++i) {
      const std::string right(alphabet.CharacterOf(static_cast<uint8_t>(text[i])));
      merges.push_back(left + " " + right);
      left += right;
      tokens.AddOnce(left, i + 1 == text.size() ? of_whole : kNormal);
    }
  };
  const uint32_t bos = tokens.Add("<s>", kControl);
  const uint32_t eos = tokens.Add("</s>", TypeOf(type));
  for (const std::string& word : Words()) add_merged(word, kNormal);
  for (const std::string& mark : marks) {
    // Some of ASCII come about by merging too.
    if (mark.find("\xef") == std::string::npos) {
      add_merged(mark, TypeOf(type));
    } else {
      tokens.AddOnce(mark, TypeOf(type));
    }
  }
  for (const std::string& spaces : Spaces()) tokens.AddOnce(spaces, kUserDefined);
  GgufBuilder builder;
  builder.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "llama-bpe");
  builder.SetStrings("tokenizer.ggml.merges", merges);
  builder.Set("tokenizer.ggml.bos_token_id", bos).Set("tokenizer.ggml.eos_token_id", eos);
  return tokens.Open(&builder);
}

std::unique_ptr<Tokenizer> SpmWithMarks(MarkType type) {
  Tokens tokens;
  tokens.Add("<unk>", kUnknown);
  const uint32_t bos = tokens.Add("<s>", kControl);
  const uint32_t eos = tokens.Add("</s>", TypeOf(type));
  for (unsigned byte = 0; byte < 256; ++byte) tokens.Add(fmt::format("<0x{:02X}>", byte), kByte);
  const auto add_pieces = [&](const std::string& text, int32_t of_whole) {
    size_t end = 0;
    while (end < text.size()) {
      end += std::max<size_t>(Utf8CharacterBytes(text, end), 1);
      tokens.AddOnce(text.substr(0, end), end == text.size() && end > 1 ? of_whole : kNormal);
    }
  };
  for (char c = ' ' + 1; c < 127; ++c) tokens.AddOnce(std::string(1, c), kNormal);
  tokens.AddOnce("\u2581", kNormal);
  for (const std::string& word : Words()) add_pieces("\u2581" + word, kNormal);
  for (const std::string& mark : ChatMarks()) add_pieces(mark, TypeOf(type));
  for (const std::string& spaces : Spaces()) tokens.AddOnce(spaces, kUserDefined);
  GgufBuilder builder;
  builder.Set("tokenizer.ggml.model", "llama").SetArray("tokenizer.ggml.scores", tokens.scores);
  builder.Set("tokenizer.ggml.bos_token_id", bos).Set("tokenizer.ggml.eos_token_id", eos);
  builder.Set("tokenizer.ggml.add_bos_token", true);
  return tokens.Open(&builder);
}

}  // namespace kvrun::testing
