#include "runtime/chat/reasoning.h"

#include <algorithm>
#include <array>

namespace kvrun {
namespace {

constexpr auto kMarks = std::to_array<ReasoningMarks>({
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
});

}  // namespace

const ReasoningMarks* FindReasoningMarks(std::string_view text) {
  const auto* const found = std::find_if(kMarks.begin(), kMarks.end(), [&](const ReasoningMarks& marks) {
    return text.find(marks.close) != std::string_view::npos;
  });
  return found == kMarks.end() ? nullptr : found;
}

}  // namespace kvrun
