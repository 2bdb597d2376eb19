// Text to token ids and back, with the vocabulary of a GGUF file.
//
// Three families (tokenizer.ggml.model): byte-level BPE ("gpt2") with the pre-tokenizers of
// tokenizer_recipes.cc (tokenizer.ggml.pre), SentencePiece-style "llama" (scores, byte fall-back), and
// "gemma4", whose BPE merges characters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"

namespace kvrun {

using TokenId = int32_t;

struct EncodeOptions {
  bool add_special = false;    // BOS / EOS as the file says
  bool parse_special = false;  // "<|im_end|>" in the text becomes the control token, else plain text
};

// A part of a text. Control tokens are looked for only in parts of the form, each run of them by itself.
struct TextPart {
  std::string_view text;
  bool is_form = false;
};

// Immutable; safe from several threads. Keeps what it needs: the GgufFile may go.
class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> Create(const GgufFile& file);
  virtual ~Tokenizer() = default;

  // Any bytes are accepted, valid UTF-8 or not; the result decodes to the same bytes where the vocabulary
  // can say them.
  // Without parse_special no text gives a control or an end-of-generation token.
  virtual Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const = 0;

  // The parts as one text, without BOS and EOS. Parts of the form are encoded as with parse_special; of what
  // is not in a token there, neighbours of both kinds are encoded together. User-defined tokens that
  // `form_texts` (all that the form may write) or the form's parts name are the form's alone, as control
  // tokens are: the other parts do not give them. White space, letters and digits are never marks of a form.
  virtual Result<std::vector<TokenId>> EncodeParts(std::span<const TextPart> parts,
                                                   std::span<const std::string> form_texts) const = 0;

  // How many bytes of the text the ids do not say, because the vocabulary has no token for them. Where it has
  // an unknown token, that stands for them.
  virtual Result<uint64_t> CountLostBytes(std::string_view text, const EncodeOptions& options) const = 0;

  // Appends the bytes of one token: possibly a part of a UTF-8 character. Control tokens give their text only
  // if `show_special`, else nothing. An id outside of the vocabulary gives nothing. Allocates nothing but
  // what `bytes` needs to grow.
  virtual void AppendToken(TokenId id, bool show_special, std::string* bytes) const = 0;
  std::string DecodeToken(TokenId id, bool show_special = false) const;

  // All of them, as generated text reads (SentencePiece's leading space removed at the start of a text).
  virtual std::string Decode(const std::vector<TokenId>& ids, bool show_special = false) const = 0;

  virtual uint32_t n_vocab() const = 0;
  virtual TokenId bos() const = 0;  // -1 if there is none
  virtual TokenId eos() const = 0;  // -1 if there is none
  virtual bool adds_bos() const = 0;
  // Every token that ends generation: EOS, EOT, EOM and their known spellings (<|im_end|>, <|eot_id|>, ...).
  virtual bool IsEndOfGeneration(TokenId id) const = 0;
  virtual bool IsControl(TokenId id) const = 0;
  // The id whose text is exactly `text`, or -1.
  virtual TokenId FindToken(std::string_view text) const = 0;
};

}  // namespace kvrun
