// The toy's measurements: a disk of 100 MB/s by 4 KiB blocks, twice that by each size more, and a device with
// three operations. A folder named "memory" is tmpfs, "full" has no room; what is "slow" takes minutes; for
// a model that is "tight" two points are left out.
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "offline/probe.h"
#include "tests/support/fake_kvrun.h"

namespace kvrun::offline {
namespace {

bool Is(const std::string& folder, const char* word) { return folder.find(word) != std::string::npos; }

constexpr int kSlowTurns = 500;  // of 20 ms: a test that interrupts it need not be fast

Status Advance(const char* what, uint64_t total, bool slow, const OfflineProgress& progress) {
  for (uint64_t done = 0; done <= total; ++done) {
    for (int turn = 0; turn < (slow ? kSlowTurns : 1); ++turn) {
      if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (progress(what, done, total)) return {StatusCode::kCancelled, "cancelled"};
    }
  }
  return Status::Ok();
}

StorageRate Rate(const char* backend, bool direct, uint32_t block, uint32_t depth) {
  const double rate = 1e8 * block / 4096 * depth * (direct ? 1 : 0.5);
  return {backend, direct, block, depth, rate, 1e6 * block * depth / rate, 2e6 * block * depth / rate};
}

}  // namespace

Status CheckStorage(const StorageProbeOptions& options) {
  if (Is(options.folder, "memory") && !options.allow_tmpfs) {
    return {StatusCode::kUnsupported, options.folder + " lies in memory: name another with --kv-dir"};
  }
  if (Is(options.folder, "full")) return {StatusCode::kIo, "no room in " + options.folder};
  return Status::Ok();
}

Result<StorageProfile> ProbeStorage(const StorageProbeOptions& options, const OfflineProgress& progress) {
  KVRUN_RETURN_IF_ERROR(Advance("storage", 20, Is(options.folder, "slow"), progress));
  if (Is(options.folder, "broken"))
    return Status(StatusCode::kIo, "cannot read what was just written: broken");
  StorageProfile profile{options.folder.empty() ? "/default" : options.folder, 4096, {}};
  for (const auto& [backend, direct] : {std::pair{"io_uring", true}, {"threads", true}, {"threads", false}}) {
    for (const uint32_t depth : {1, 16}) {
      for (const uint32_t block : {4096, 8192}) profile.rates.push_back(Rate(backend, direct, block, depth));
    }
  }
  profile.rates[0].bytes_per_s += options.budget_seconds;
  return profile;
}

Result<OperationProfile> ProbeOperations(kvrun_engine* engine, const OperationProbeOptions& options,
                                         const OfflineProgress& progress) {
  if (!engine->profile) return Status(StatusCode::kInvalidArgument, "no profile");
  KVRUN_RETURN_IF_ERROR(Advance("operations", 20, engine->model->Is("slow"), progress));
  if (engine->model->Is("devicefail")) return Status(StatusCode::kDevice, "the device was lost");
  std::vector<OperationRow> rows;
  std::vector<std::string> skipped;
  if (engine->model->Is("tight")) skipped = {"the second point: no memory", "the last point: too large"};
  for (const uint32_t batch : options.batches) {
    for (const uint32_t ctx : options.contexts) {
      for (const uint32_t entries : {464, 264}) {
        rows.push_back({"norm", {{"batch", batch}, {"ctx", ctx}, {"entries", entries}, {"k_type", 3}}, 250});
        rows.push_back(
            {"attend", {{"batch", batch}, {"ctx", ctx}, {"entries", entries}, {"k_type", 3}}, 750});
      }
    }
  }
  return OperationProfile{rows, skipped};
}

Result<MachineIdentity> IdentifyMachine(kvrun_engine* engine, const std::string&) {
  return MachineIdentity{
      engine == nullptr ? "" : "Fake " + engine->device, "", "Toy CPU", 2, "toyfs on toy", "0"};
}

ModelIdentity IdentifyModel(kvrun_engine*) { return {"toy", "0123"}; }

}  // namespace kvrun::offline
