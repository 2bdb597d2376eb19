// Which random cases a test tries: a few that are always the same, or those that somebody asks for.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace kvrun::testing {

inline uint64_t NumberFromEnvironment(const char* name, uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : std::strtoull(value, nullptr, 10);
}

struct Seeds {
  uint64_t first = 1;
  uint64_t n = 0;

  uint64_t end() const { return first + n; }
};
// From $KVRUN_SEED on, $KVRUN_HISTORIES of them; where these are not set, the first n_usual.
inline Seeds SeedsHere(uint64_t n_usual) {
  return {NumberFromEnvironment("KVRUN_SEED", 1), NumberFromEnvironment("KVRUN_HISTORIES", n_usual)};
}

}  // namespace kvrun::testing
