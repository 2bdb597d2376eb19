// Makes templates at random, of what chat templates use and of what Jinja2 knows beside that.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace kvrun::testing {

// The variables that these templates read.
const char* JinjaMakerVariables();

class JinjaMaker {
 public:
  explicit JinjaMaker(uint64_t seed) : random_(seed) {}

  std::string Template();

 private:
  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }
  template <size_t n>
  const char* One(const char* const (&of)[n]) {
    return of[Below(n)];
  }
  // A form with "@" for expressions, "#" for numbers, "$" for texts and "^" for sequences.
  std::string Filled(const char* form, int depth);

  std::string Expression(int depth);
  std::string Text(int depth);
  std::string Number(int depth);
  std::string List(int depth);
  std::string Statement(int depth);
  std::string Statements(int depth);

  std::mt19937_64 random_;
};

}  // namespace kvrun::testing
