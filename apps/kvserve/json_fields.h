// The fields of a request's JSON, by type. What is wrong becomes an ApiError that names the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/json_limits.h"
#include "apps/kvserve/openai_error.h"

namespace kvrun::serve {

// What a body may have, so that it is read in little time, stack and memory whatever is in it. There is room
// for 16 prompts of 100,000 tokens, and for some 20,000 messages.
inline constexpr cli::JsonLimits kBodyLimits = {100, 4'000, 100'000, 2'000'000};

// The object that a body is.
Json ParseBody(const std::string& body);

// "PARAM" is VALUE: it must be WHAT. A list or an object is named by its kind, a long text by its ends.
[[noreturn]] void RefuseValue(const std::string& param, const Json& value,
                              const std::string& what_it_must_be);
[[noreturn]] void RefuseMissing(const std::string& param, const std::string& what_it_must_be);
// What is known, and cannot be done. `message` is the whole.
[[noreturn]] void RefuseUnsupported(const std::string& param, const std::string& message);

// Also of 3.0, as some programs write whole numbers; nothing where it is none, or takes more than 64 bits.
std::optional<int64_t> WholeNumber(const Json& value);

// A list of tokens, maybe empty.
std::vector<int32_t> TokenIds(const std::string& param, const Json& value);

// The object has to outlive it. Null counts as missing.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  const Json* Find(const char* name) const;  // nullptr: missing
  std::optional<float> Real(const char* name, float least, float most) const;
  std::optional<int64_t> Whole(const char* name, int64_t least, int64_t most) const;
  std::optional<bool> Flag(const char* name) const;
  std::optional<std::string> Text(const char* name) const;

 private:
  const Json& object_;
};

}  // namespace kvrun::serve
