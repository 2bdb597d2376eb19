// What a plan's family says of the bytes that a session keeps, beyond what all methods have
// (planner/stored_form.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvrun {

// A name and what it is, as messages and files of sessions have them: {"records", "int8 int4 x 4 tokens"}.
using StoredFact = std::pair<std::string, std::string>;

struct FamilyForm {
  std::vector<StoredFact> facts;
  // Of what was kept, facts that a plan need not have: what is stored serves without, too.
  std::vector<StoredFact> may_lack;
  // The options that decide them: names without "--kv-", and values as on the command line.
  std::vector<std::pair<std::string, std::string>> options;
};

}  // namespace kvrun
