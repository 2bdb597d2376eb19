#include <sched.h>

#include "offline/probe.h"
#include "runtime/capi/handles.h"
#include "runtime/engine/machine/machine.h"
#include "runtime/engine/text/utf8.h"

namespace kvrun::offline {
namespace {

uint32_t UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails where there are more than 1024 processors; nobody is hurt by a 0.
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  return static_cast<uint32_t>(CPU_COUNT(&set));
}

}  // namespace

Result<MachineIdentity> IdentifyMachine(kvrun_engine* engine, const std::string& folder) {
  MachineIdentity machine{.device = "",
                          .driver = "",
                          .cpu = RepairedUtf8(CpuName()),
                          .n_cpus = UsableCpus(),
                          .storage = StorageName(folder),
                          .kvrun = kvrun_version()};
  if (engine == nullptr) return machine;
  const DeviceInfo& info = engine->engine->device().info();
  machine.device = RepairedUtf8(info.name);
  machine.driver = RepairedUtf8(info.driver);
  return machine;
}

ModelIdentity IdentifyModel(kvrun_engine* engine) {
  const Model& model = engine->engine->model();
  // The engine has asked for it when it was made, so that it is there.
  const Result<std::string> fingerprint = model.Fingerprint();
  return {.name = model.config.name, .fingerprint = fingerprint.ok() ? *fingerprint : ""};
}

}  // namespace kvrun::offline
