#include "apps/common/number_list.h"

#include <fmt/format.h>

#include <charconv>

#include "apps/common/failure.h"

namespace kvrun::cli {

std::vector<uint32_t> ParseNumberList(const std::string& source, const std::string& text, uint32_t least,
                                      uint32_t most, const std::string& example) {
  std::vector<uint32_t> numbers;
  const char* next = text.data();
  const char* const end = next + text.size();
  while (true) {
    uint32_t number = 0;
    const auto [rest, error] = std::from_chars(next, end, number);
    if (error != std::errc() || number < least || number > most || (rest != end && *rest != ',')) {
      throw UsageError(fmt::format("{}: \"{}\" is not a list of numbers from {} to {}, such as {}", source,
                                   text, least, most, example));
    }
    numbers.push_back(number);
    if (rest == end) return numbers;
    next = rest + 1;
  }
}

}  // namespace kvrun::cli
