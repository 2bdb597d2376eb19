// What a session generates for a sequence, whatever ends an answer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/session/session.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {

inline std::vector<TokenId> GeneratedIds(Session& session, uint32_t n, float temperature, uint64_t seed,
                                         uint32_t sequence = 0) {
  GenerateOptions options;
  options.max_tokens = n;
  options.ignore_end = true;
  options.sampler.temperature = temperature;
  options.sampler.seed = seed;
  std::vector<TokenId> ids;
  RunOrDie(session.Generate(std::span(&sequence, 1), options,
                            [&ids](const GeneratedToken& token) {
                              if (token.id >= 0) ids.push_back(token.id);
                              return false;
                            },
                            {}));
  return ids;
}

}  // namespace kvrun::testing
