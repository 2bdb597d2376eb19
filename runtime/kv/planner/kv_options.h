// What a user says of the KV cache, as text: the command line, the C API and files of configurations are read
// alike.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/units.h"
#include "platform/io/block_file.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// Of the option "budget". Far above any use: what is larger was mistyped.
inline constexpr uint64_t kMaxBudgetBytes = 1024 * kGiB;

// Where the KV lies, for methods that keep it on flash.
struct KvStorageOptions {
  std::string folder;  // empty: what FindKvFolder finds
  bool auto_backend = true;
  IoBackend backend = IoBackend::kIoUring;
  DirectIo direct = DirectIo::kAuto;
  bool allow_tmpfs = false;
  std::string adapter_path;  // empty: adapters are computed from the first prompt
};

struct KvSettings {
  KvOptions kv;
  KvStorageOptions storage;
  // Of kvrun: how fast storage is is kept for it alone. Empty: nobody asks how fast it is.
  std::string version;
};

// Sets one option by name; the value is written as on the command line. A value that is refused changes
// nothing, and the error names option, value and what is known.
//   method        a row of KvMethods: full, flexgen, kvswap; not said: chosen (kv_plan.h)
//   budget        bytes (14155776), with a unit (13.5MiB; KiB, MiB, GiB), or a share of the f16 KV of the
//                 whole context (1/13). Replaces an earlier one. Without a unit and a stroke it is bytes:
//                 0.5 is refused, 1/2 is meant.
//   type          f32, f16, fp8, int8, int4: one for both, or K,V (fp8,int4)
//   group         entries, from 1 to 256
//   select, window, sinks   entries, from 0
//   hide          a share from 0 to 1
//   reads         a number from 0
//   adapt         on, off
//   sample        entries, from 0
//   seed          from 0
//   mass          a share above 0 and at most 1
//   reuse         groups, from 0
//   rank          columns, from 1
//   index         f16, int8, int4
//   heads         sum, softmax, gqa, per-kv-head
//   cluster, cluster-max, pending   entries, from 1 (cluster-max: 2)
//   split         a number above 0: of how many times the first clusters' variance one is divided
//   update        adaptive, static, local
//   layout        dual-head, cluster
//   representatives   memory, flash
//   shares        even, heads, layers
//   precisions    bytes, entries, original, quantised
//   moments       keys, rows
//   static        a share from 0 to 1, or "prompt"
//   static-steps  tokens, from 0
//   repage        on, off
//   rotate        on, off
//   policy        a row of ReplacementPolicies: fifo, lru, non-hit, lfu, cluster
//   adapter       a file
//   adapter-kind  plain, centred, query, query-centred, heads, skewed
//   dir           a folder
//   io            auto, io_uring, aio, threads
//   direct        auto, on, off
//   tmpfs         on, off
// What does not go together, or with a model, is found by PlanKv.
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
