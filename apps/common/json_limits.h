// What is known of a text of JSON before it is read.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace kvrun::cli {

struct JsonLimits {
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();
  // Values are written by calls within calls, and members of an object looked for one by one.
  size_t depth = 500;
  size_t members_of_an_object = 10'000;
  size_t members = kNone;  // of all objects together
  size_t values = kNone;   // in all lists and objects
};

// Beyond which the text is, such as "is nested more than 500 deep"; "": none. Up to its first mistake it is
// taken apart as a parser does, which goes no further. (As a callback of nlohmann's parser it would take time
// in the square of a list's length: with one, the parser goes through the list again after each object in
// it.)
std::string BeyondLimits(std::string_view text, const JsonLimits& limits);

}  // namespace kvrun::cli
