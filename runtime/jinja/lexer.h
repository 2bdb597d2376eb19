// Splits a template into tokens, with trim_blocks and lstrip_blocks. Internal to the templates' interpreter.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"

namespace kvrun::jinja {

enum class Token : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kInteger,
  kFloat,
  kString,    // with its quotes
  kOperator,  // its text says which
  kEnd,
};

struct LexedToken {
  Token token = Token::kEnd;
  uint32_t line = 1;
  std::string_view text;
};

// Line ends become "\n", and one at the end is left out.
std::string NormalisedSource(std::string_view source);

// Tokens of a normalised source, which must outlive them; the last one is kEnd.
Result<std::vector<LexedToken>> Lex(std::string_view source);

// The text between a token's quotes, without its escapes.
Result<std::string> UnescapedString(const LexedToken& token);

Status WrongSyntax(uint32_t line, std::string_view what);

}  // namespace kvrun::jinja
