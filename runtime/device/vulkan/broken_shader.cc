#include "runtime/device/vulkan/broken_shader.h"

namespace kvrun {
namespace {

// Of the SPIR-V specification; the operands of both sums and products are result type, result and two values.
constexpr uint32_t kHeaderWords = 5;
constexpr uint32_t kOpNop = 0;
constexpr uint32_t kOpStore = 62;
constexpr uint32_t kOpFAdd = 129;
constexpr uint32_t kOpFMul = 133;
// An instruction of the set GLSL.std.450 has its number behind result type, result and set; both take three
// values.
constexpr uint32_t kOpExtInst = 12;
constexpr uint32_t kFMix = 46;
constexpr uint32_t kFma = 50;

// Calls visit(opcode, words of the instruction).
template <typename Visitor>
void VisitInstructions(std::span<uint32_t> code, Visitor&& visit) {
  for (size_t at = kHeaderWords; at < code.size();) {
    const uint32_t n_words = code[at] >> 16;
    if (n_words == 0 || at + n_words > code.size()) return;
    visit(code[at] & 0xffffU, code.subspan(at, n_words));
    at += n_words;
  }
}

}  // namespace

std::vector<uint32_t> BreakShader(std::span<const uint32_t> spirv) {
  std::vector<uint32_t> code(spirv.begin(), spirv.end());
  bool has_changed = false;
  VisitInstructions(code, [&](uint32_t opcode, std::span<uint32_t> words) {
    if (opcode == kOpFMul) {
      words[0] = (words[0] & 0xffff0000U) | kOpFAdd;
    } else if (opcode == kOpExtInst && words[4] == kFma) {
      words[4] = kFMix;
    } else {
      return;
    }
    has_changed = true;
  });
  if (has_changed) return code;
  VisitInstructions(code, [](uint32_t opcode, std::span<uint32_t> words) {
    if (opcode != kOpStore) return;
    for (uint32_t& word : words) word = 1U << 16 | kOpNop;
  });
  return code;
}

}  // namespace kvrun
