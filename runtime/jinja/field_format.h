// One field of a format: a value at a width. Internal to the templates' interpreter.
#pragma once

#include <cstdint>

#include "runtime/jinja/functions.h"

namespace kvrun::jinja {

struct FieldFormat {
  MarkedText fill = MarkedText::Form(" ");
  char align = 0;  // '<', '>', '^', '=' (between sign and digits), or 0
  char sign = '-';
  bool is_alternate = false;  // 0x before digits
  int64_t width = 0;
  char grouping = 0;  // ',' or '_'
  int64_t precision = -1;
  char type = 0;
};

// Characters of a width or precision; larger ones are refused.
constexpr int64_t kMostWidth = int64_t{1} << 24;

Result<MarkedText> Padded(Run& run, const MarkedText& text, const FieldFormat& format, char usual_align);
// `type`: d b o x X c, or 0 for d.
Result<MarkedText> IntegerField(Run& run, int64_t value, const FieldFormat& format);
// `type`: e E f F g G %, or 0 for what str() writes.
Result<MarkedText> FloatField(Run& run, double value, const FieldFormat& format);

}  // namespace kvrun::jinja
