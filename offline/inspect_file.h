// What a file of kvrun's holds: `kvadapt inspect`.
#pragma once

#include <string>

#include "offline/device_profile.h"
#include "platform/base/status.h"
#include "runtime/engine/config/config_file.h"
#include "runtime/kv/math/adapter.h"

namespace kvrun::offline {

// A JSON object whose "what" is "adapter", "config" or "profile": told from the content, whatever the name.
//   adapter: kind, rank, n_layers, key_dim, fingerprint, bytes (of the file), layers [{energy: [of columns
//            0..i, by i]}], reuse {rates [..]} as kvrun_measure_reuse, cluster_thresholds (how many),
//            entry_means (how many numbers), layer_shares [of layer i], made_from, measured_on (texts for
//            people)
//   config:  model, fingerprint, device, driver, cpu, storage, method, adapter, solutions [{batch, ctx,
//            budget_bytes, options {..}, predicted_ms, measured_ms, kl, bound: null where it does not say}]
//   profile: model, fingerprint, device, driver, cpu, n_cpus, storage, kvrun, folder, alignment_bytes, rates
//            [{backend, direct, block_bytes, depth, bytes_per_s, latency_us, latency_p99_us}], n_operations
Result<std::string> InspectFile(const std::string& path);

// The objects, of what was read.
std::string AdapterObject(const Adapter& adapter, uint64_t file_bytes);
std::string ConfigObject(const KvConfig& config);
std::string ProfileObject(const DeviceProfile& profile);

}  // namespace kvrun::offline
