#include "runtime/model/tokenizer_pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <span>

#include "runtime/model/tokenizer_recipes.h"
#include "runtime/model/tokenizer_text.h"

namespace kvrun {
namespace {

std::string PcreMessage(int code) {
  std::array<PCRE2_UCHAR, 160> message{};
  pcre2_get_error_message(code, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

struct MatchState {
  pcre2_match_context* context = nullptr;
  pcre2_match_data* data = nullptr;

  MatchState() = default;
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

// The patterns need a step or two per byte of a word; the limits are there for what was overlooked.
constexpr uint32_t kMatchLimitPerByte = 16;
constexpr uint32_t kMinMatchLimit = 1U << 20;
constexpr uint32_t kHeapLimitKib = 256U << 10;

uint32_t MatchLimit(size_t text_bytes) {
  const size_t limit = text_bytes * kMatchLimitPerByte;
  return static_cast<uint32_t>(std::clamp<size_t>(limit, kMinMatchLimit, UINT32_MAX));
}

}  // namespace

class PreTokenizer::Pattern {
 public:
  static Result<std::unique_ptr<Pattern>> Compile(const std::string& source) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
    if (code == nullptr) {
      return Status(StatusCode::kInternal,
                    fmt::format("the library PCRE2 cannot compile the pattern of a pre-tokenizer (at offset "
                                "{}: {}); it must be built with Unicode support",
                                offset, PcreMessage(error)));
    }
    // Where the system forbids it or PCRE2 was built without, matching is slower, nothing else.
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return std::unique_ptr<Pattern>(new Pattern(code));
  }

  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() { pcre2_code_free(code_); }

  // Cuts each of the words that end at `word_ends` into matches and what lies between them. A word is
  // matched as if there were nothing around it.
  Result<std::vector<uint32_t>> Split(std::string_view text, std::span<const uint32_t> word_ends) const {
    MatchState state;
    state.context = pcre2_match_context_create(nullptr);
    state.data = pcre2_match_data_create(1, nullptr);
    if (state.context == nullptr || state.data == nullptr) {
      return Status(StatusCode::kOutOfMemory, "there is not enough memory to cut the text into words");
    }
    pcre2_set_match_limit(state.context, MatchLimit(text.size()));
    pcre2_set_heap_limit(state.context, kHeapLimitKib);
    std::vector<uint32_t> ends;
    ends.reserve(text.size() / 4 + 1);
    uint32_t begin = 0;
    for (const uint32_t end : word_ends) {
      KVRUN_RETURN_IF_ERROR(SplitWord(text, begin, end, state, &ends));
      begin = end;
    }
    return ends;
  }

 private:
  explicit Pattern(pcre2_code* code) : code_(code) {}

  Status SplitWord(std::string_view text, uint32_t begin, uint32_t end, const MatchState& state,
                   std::vector<uint32_t>* ends) const {
    const std::string_view word = text.substr(begin, end - begin);
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(state.data);
    size_t done = 0;
    while (done < word.size()) {
      const int found = Match(word, done, state);
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0 || match[1] <= done) return Failure(begin + done, found);
      if (match[0] > done) ends->push_back(begin + static_cast<uint32_t>(match[0]));
      done = match[1];
      ends->push_back(begin + static_cast<uint32_t>(done));
    }
    if (done < word.size()) ends->push_back(end);
    return Status::Ok();
  }

  int Match(std::string_view word, size_t offset, const MatchState& state) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(word.data());
    int found =
        pcre2_match(code_, subject, word.size(), offset, PCRE2_NO_UTF_CHECK, state.data, state.context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code_, subject, word.size(), offset, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data,
                          state.context);
    }
    return found;
  }

  static Status Failure(size_t offset, int error) {
    return {StatusCode::kUnsupported,
            fmt::format("the text cannot be cut into words at byte {}: {}; pass it in parts", offset,
                        error < 0 ? PcreMessage(error) : "empty word")};
  }

  pcre2_code* code_;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(std::string_view name) {
  KVRUN_ASSIGN_OR_RETURN(const PreTokenizerRecipe recipe, FindPreTokenizerRecipe(name));
  std::unique_ptr<PreTokenizer> result(new PreTokenizer());
  for (const std::string& source : recipe.patterns) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Pattern> pattern, Pattern::Compile(source));
    result->patterns_.push_back(std::move(pattern));
  }
  result->takes_whole_words_ = recipe.takes_whole_words;
  result->adds_bos_by_default_ = recipe.adds_bos_by_default;
  return result;
}

Result<std::vector<uint32_t>> PreTokenizer::Split(std::string_view text) const {
  std::vector<uint32_t> ends;
  if (text.empty()) return ends;
  const std::string masked = WithInvalidUtf8Masked(text);
  ends.push_back(static_cast<uint32_t>(text.size()));
  for (const std::unique_ptr<Pattern>& pattern : patterns_) {
    KVRUN_ASSIGN_OR_RETURN(ends, pattern->Split(masked, ends));
  }
  return ends;
}

}  // namespace kvrun
