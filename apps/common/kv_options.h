// --kv-method and what belongs to it. The library knows which options and values there are; the program
// names them in its help.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/common/api.h"
#include "apps/common/options.h"

namespace kvrun::cli {

// What was said, by the library's names: {"budget", "1/13"}.
class KvOptionList {
 public:
  // A UsageError that begins with `source`, the option or the variable, where the library refuses the value.
  void Set(const std::string& source, const std::string& name, const std::string& value);

  // What `other` says takes the place of what this says of the same name.
  void Override(const KvOptionList& other);

  // What was said last; null: nothing.
  const std::string* Find(const std::string& name) const;
  bool empty() const { return options_.empty(); }
  // A method or a budget was asked for.
  bool asks_for_plan() const;
  // " (the environment variable KVRUN_KV_BUDGET sets --kv-budget of kvrun run)", where the message names an
  // option that a variable set; else empty.
  std::string VariablesIn(const std::string& message) const;
  // As one line of options: "--kv-method kvswap --kv-budget 1/13".
  std::string Line() const;
  // Points into this; valid until the next Set.
  std::vector<kvrun_option> values() const;

 private:
  struct Said {
    std::string name;
    std::string value;
    std::string source;
  };

  std::vector<Said> options_;
};

// Whether a command shows what is there to compare methods with, or takes it without a word.
enum class KvComparisons : uint8_t { kHidden, kShown };

// --kv-method, --kv-budget, --kv-type and so on: the library's rows.
void AddKvOptions(OptionSet* set, KvOptionList* kv, KvComparisons comparisons);

}  // namespace kvrun::cli
