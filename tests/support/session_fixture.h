// A session over a fake forward pass, and what it must answer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/session/session.h"
#include "tests/support/fake_forward_pass.h"
#include "tests/support/fake_tokenizer.h"

namespace kvrun::testing {

using Ids = std::vector<TokenId>;

inline constexpr uint32_t kVocab = 300;

inline TokenId ArgMax(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// What greedy generation answers, computed without a session.
inline Ids GreedyAfter(Ids tokens, size_t n) {
  Ids generated;
  for (size_t i = 0; i < n; ++i) {
    generated.push_back(ArgMax(FakeForwardPass::LogitsAfter(tokens, kVocab)));
    tokens.push_back(generated.back());
  }
  return generated;
}

inline Ids SomeIds(size_t n, int seed = 0) {
  Ids ids;
  for (size_t i = 0; i < n; ++i)
    ids.push_back(static_cast<TokenId>((i * 31 + static_cast<size_t>(seed) * 7 + 5) % 250));
  return ids;
}

struct Answer {
  Ids ids;
  std::string text;
};

class SessionFixture : public ::testing::Test {
 protected:
  std::unique_ptr<Session> Make(FakePassOptions options = {}, std::vector<std::string> words = {},
                                ProgressCallback progress = {}) {
    options.log = &log_;
    tokenizer_ = std::make_unique<FakeTokenizer>(std::move(words));
    Session::Parts parts;
    parts.n_sequences = options.n_sequences;
    parts.n_ctx = options.n_ctx;
    parts.forward_pass = std::make_unique<FakeForwardPass>(options);
    parts.device_mutex = &mutex_;
    parts.tokenizer = tokenizer_.get();
    parts.progress = std::move(progress);
    auto session = Session::Create(std::move(parts));
    EXPECT_TRUE(session.ok()) << session.status().message();
    return std::move(session).value();
  }

  // One sequence that says these words, then ends.
  std::unique_ptr<Session> MakeScripted(const std::vector<std::string>& words, FakePassOptions options = {}) {
    options.script = [n = words.size()](uint32_t, uint32_t position) {
      const TokenId end = FakeTokenizer::kEos;
      return position < n ? FakeTokenizer::kFirstWord + static_cast<TokenId>(position) : end;
    };
    return Make(options, words);
  }

  static std::map<uint32_t, Answer> Generate(Session* session, std::vector<uint32_t> sequences,
                                             const GenerateOptions& options,
                                             std::vector<GenerateResult>* results = nullptr) {
    std::map<uint32_t, Answer> answers;
    std::vector<GenerateResult> own_results;
    if (results == nullptr) results = &own_results;
    results->assign(sequences.size(), {});
    const Status status = session->Generate(
        sequences, options,
        [&](const GeneratedToken& token) {
          Answer& answer = answers[token.sequence];
          if (token.id >= 0) answer.ids.push_back(token.id);
          answer.text += token.text;
          return false;
        },
        *results);
    EXPECT_TRUE(status.ok()) << status.message();
    return answers;
  }

  static GenerateOptions Tokens(uint32_t n) {
    GenerateOptions options;
    options.max_tokens = n;
    options.ignore_end = true;
    return options;
  }

  FakePassLog log_;
  std::mutex mutex_;
  std::unique_ptr<FakeTokenizer> tokenizer_;
};

}  // namespace kvrun::testing
