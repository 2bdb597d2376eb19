// An answer as the library hands it out token by token, told from what the model thinks.
#pragma once

#include <exception>
#include <string_view>
#include <vector>

#include "apps/kvrun/generation.h"

namespace kvrun::cli {

// GenerationOptions as the library takes them; these are to stay as they are meanwhile.
class LibraryOptions {
 public:
  explicit LibraryOptions(const GenerationOptions& generation);
  LibraryOptions(const LibraryOptions&) = delete;
  LibraryOptions& operator=(const LibraryOptions&) = delete;

  kvrun_generate_options values;

 private:
  std::vector<const char*> stops_;
};

// The library calls it on any thread, one call at a time.
class AnswerCollector {
 public:
  // reasoning: null: thoughts are not told from the answer. sink: may be empty.
  AnswerCollector(const GenerationOptions& generation, Reasoning reasoning, PieceSink sink);
  AnswerCollector(const AnswerCollector&) = delete;
  AnswerCollector& operator=(const AnswerCollector&) = delete;

  // What the library is to be called with, beside a kvrun_token_fn whose `user` this is. It ends the answer
  // on Ctrl-C, and where a token cannot be taken or written.
  kvrun_generate_options* options() { return &library_.values; }
  static int OnToken(void* user, uint32_t sequence, int32_t token, const char* text, size_t text_bytes);

  bool has_tokens() const { return !answer_.tokens.empty(); }
  // Of a write that failed; 0: none did.
  int stdout_error() const { return stdout_error_; }
  // When the library has nothing more to hand out. Throws where a piece could not be taken or written.
  Answer Finish(kvrun_finish finish);

 private:
  struct Part {
    bool is_reasoning = false;
    std::string text;
  };
  struct PartList {
    std::vector<Part> parts;
    bool has_failed = false;  // out of memory
  };

  static void OnLogprobs(void* user, uint32_t sequence, kvrun_token_logprob taken,
                         const kvrun_token_logprob* likeliest, size_t n);
  static void OnPart(void* user, int is_reasoning, const char* text, size_t text_bytes);
  std::vector<Part> PartsOf(int32_t token, std::string_view text);
  void TakeToken(int32_t token, std::string_view text);
  void Take(const std::vector<Part>& parts, int32_t token, const StepLogprobs* logprobs);

  LibraryOptions library_;
  const Reasoning reasoning_;
  const PieceSink sink_;
  Answer answer_;
  StepLogprobs logprobs_ = {};  // of the token that comes next
  bool is_reasoning_ = false;   // the last part
  std::exception_ptr failure_;  // of taking a token: nothing may be thrown through the library
  int stdout_error_ = 0;
};

}  // namespace kvrun::cli
