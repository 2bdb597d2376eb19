// `kvadapt probe`: measures storage and device into a DeviceProfile.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "offline/device_profile.h"
#include "platform/base/status.h"
#include "runtime/include/kvrun/kvrun.h"

namespace kvrun::offline {

// What a long call is doing ("storage", "operations", ..), and how far it is, in steps of its own. Answers
// true to cancel.
using OfflineProgress = std::function<bool(const std::string& what, uint64_t done, uint64_t total)>;

struct StorageProbeOptions {
  std::string folder;            // empty: where sessions keep their KV
  std::string backend = "auto";  // "auto": the one that sessions take
  bool all_modes = true;         // every back end and buffered reads too; else what sessions take alone
  bool allow_tmpfs = false;
  uint64_t file_bytes = 0;       // 0: chosen, at most 256 MiB (16 of one mode) and an eighth of what is free
  double budget_seconds = 30.0;  // about; each point is measured at least once
};
// What sessions take comes first in the profile. Of one mode alone, 0.3 seconds suffice.
Result<StorageProfile> ProbeStorage(const StorageProbeOptions& options, const OfflineProgress& progress);

struct OperationProbeOptions {
  std::vector<uint32_t> batches = {1};
  std::vector<uint32_t> contexts = {8192};
  std::string folder;  // as above
  bool allow_tmpfs = false;
};
struct OperationProfile {
  std::vector<OperationRow> rows;
  std::vector<std::string> skipped;  // of each point that was left out, what it is and why
};
// The engine must have been made with profile on. Decodes with random KV, all of it chosen again in each
// step, at points that vary one thing at a time: the batch, the context, entries selected, the index's rank
// and type, K's and V's types; and with all KV in memory. Rows of the first point, which the others vary,
// come first, unless it is left out. Each row carries the whole shape of its point
// (docs/formats/device_profile.md). Points that memory does not suffice for are left out; where it suffices
// for none, that is what fails.
Result<OperationProfile> ProbeOperations(kvrun_engine* engine, const OperationProbeOptions& options,
                                         const OfflineProgress& progress);

// Of the machine, without measuring. `folder` as above. Without an engine (null) device and driver are empty.
Result<MachineIdentity> IdentifyMachine(kvrun_engine* engine, const std::string& folder);

struct ModelIdentity {
  std::string name;
  std::string fingerprint;
};
ModelIdentity IdentifyModel(kvrun_engine* engine);

// Whether ProbeStorage could begin: a folder that can be written, not in memory, with room. Measures nothing
// and makes no folder.
Status CheckStorage(const StorageProbeOptions& options);

}  // namespace kvrun::offline
