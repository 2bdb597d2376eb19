// What a session that is kept says of itself, before all else of it: by this another process knows whether it
// can go on with it, and how it was made. Text: a line "name value" each, in docs/formats/session.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/planner/kv_option_table.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/kv/planner/stored_form.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

struct SessionIdentity {
  std::string model;       // ModelFingerprint
  std::string model_name;  // for people
  uint32_t n_sequences = 1;
  uint32_t n_ctx = 0;
  uint32_t room_tokens = 0;  // the longest context that its files have places for
  // KV options as they were given, and as the plan has settled them: name and value.
  std::vector<std::pair<std::string, std::string>> given;
  std::vector<std::pair<std::string, std::string>> settled;
  std::vector<StoredFact> form;
  std::optional<FlashTimes> flash_times;  // what the plan was made with
  std::string words;                      // the text's first ones, for people

  // False: its files were made, and nothing was saved yet.
  bool is_begun() const { return !model.empty() || n_ctx > 0; }

  // Its options, where `settings` does not say otherwise.
  Status Complete(KvSettings* settings, bool with_settled) const;
};

std::string WriteIdentity(const SessionIdentity& identity);
// kCorrupt: it is no such text.
Result<SessionIdentity> ReadIdentity(std::string_view text);

}  // namespace kvrun
