#include "apps/common/number_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "apps/common/failure.h"

namespace kvrun::cli {

std::optional<uint64_t> ParseCount(std::string_view text) {
  uint64_t factor = 1;
  if (text.ends_with('k') || text.ends_with('K')) factor = uint64_t{1} << 10;
  if (text.ends_with('m') || text.ends_with('M')) factor = uint64_t{1} << 20;
  if (factor != 1) text.remove_suffix(1);
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  if (number > std::numeric_limits<uint64_t>::max() / factor) return std::nullopt;
  return number * factor;
}

std::vector<uint32_t> ParseNumberList(const std::string& source, const std::string& text, uint32_t least,
                                      uint32_t most, const std::string& example) {
  std::vector<uint32_t> numbers;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::optional<uint64_t> number = ParseCount(std::string_view(text).substr(start, end - start));
    if (!number || *number < least || *number > most) {
      throw UsageError(fmt::format("{}: \"{}\" is not a list of numbers from {} to {}, such as {}", source,
                                   text, least, most, example));
    }
    numbers.push_back(static_cast<uint32_t>(*number));
    start = end + 1;
  }
  return numbers;
}

std::vector<uint32_t> ParseContexts(const std::string& source, const std::string& text) {
  return ParseNumberList(source, text, 256, 1U << 27, "4096,8192");
}

}  // namespace kvrun::cli
