// Capitals and small letters, where each is one character. Internal to the templates' interpreter.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvrun::jinja {

// The character itself where it has none.
uint32_t CapitalOf(uint32_t code);
uint32_t SmallOf(uint32_t code);

}  // namespace kvrun::jinja
