// What a user says of the KV cache, as text: the command line, the C API and files of configurations are read
// alike.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/units.h"
#include "platform/io/block_file.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"

namespace kvrun {

// Of the option "budget". Far above any use: what is larger was mistyped.
inline constexpr uint64_t kMaxBudgetBytes = 1024 * kGiB;

class WriteMeter;

// Where the KV lies, for methods that keep it on flash.
struct KvStorageOptions {
  std::string folder;  // empty: what FindKvFolder finds
  bool auto_backend = true;
  IoBackend backend = IoBackend::kIoUring;
  DirectIo direct = DirectIo::kAuto;
  bool allow_tmpfs = false;
  // Of files that outlive their process, and may be read on another machine: no less, whatever the disk asks
  // for.
  uint32_t least_alignment_bytes = 1;
  bool encrypts = false;  // files: of a session that is kept with its key, else with keys that nobody has
  // Of files of a session that is kept, and that are only read, the longest context that they have room for:
  // what is written goes to others (OverlayFile). 0: files are written.
  uint32_t overlaid_tokens = 0;
  std::string adapter_path;  // empty: adapters are computed from the first prompt
  // What all processes of this user write in a day, before a prompt is refused; nothing: as much as they do.
  std::optional<uint64_t> write_limit_bytes;
  std::string written_path;  // of the file that what is written is added to (WriteMeter); empty: none
  std::shared_ptr<WriteMeter> meter;  // a session's own; null: what is made here gets one
};

struct KvSettings {
  KvOptions kv;
  KvStorageOptions storage;
  // Names and values of what SetKvOption was given, the last one of each name.
  std::map<std::string, std::string> given;
  // Of a session that is kept: those that it was planned with. Nothing: they are measured.
  std::optional<FlashTimes> flash_times;
  // Of kvrun: how fast storage is is kept for it alone. Empty: nobody asks how fast it is.
  std::string version;
};

// Sets one option by name; the value is written as on the command line. A value that is refused changes
// nothing, and the error names option, value and what is known. kv_option_table.cc has a row for each. A
// budget replaces an earlier one. What does not go together, or with a model, is found by PlanKv.
Status SetKvOption(std::string_view name, std::string_view value, KvSettings* settings);

// The words that an option takes, as completion offers them; empty where its value is a number, a path or not
// an option's. "type" also takes two of them with a comma between.
std::vector<std::string> KvOptionChoices(std::string_view name);

// Options as on a command line, on top of what `settings` holds: "--kv-method kvswap --kv-budget=1/13
// --kv-tmpfs". Every name has its "--kv-" in front; words are separated by blanks; a value that holds
// blanks stands between double quotes, with a backslash before quotes and backslashes in it.
// On an error the options before the one that it names are set.
Status ParseKvOptions(std::string_view line, KvSettings* settings);

}  // namespace kvrun
