// What a machine does, measured: its storage by block size, its device by operation and shape. A JSON file
// (docs/formats/device_profile.md) that `kvadapt probe` writes; `kvadapt tune` reads what it says of storage.
// Source: KVSwap, appendix A.3.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"

namespace kvrun::offline {

// Of what was measured: other machines, devices and models have other times. Names are UTF-8: those of
// IdentifyMachine are, so that they are compared as they are kept.
struct MachineIdentity {
  std::string device;   // as kvrun_engine_info_json's
  std::string driver;   // with its version
  std::string cpu;      // the processor's name
  uint32_t n_cpus = 0;  // that this process may use
  std::string storage;  // file system and block device of the folder: "ext4 on vda"
  std::string kvrun;    // version
  bool operator==(const MachineIdentity&) const = default;
};

// Random reads of one size, so many in flight, through one back end.
struct StorageRate {
  std::string backend;  // "io_uring", "aio", "threads"
  bool direct = false;
  uint32_t block_bytes = 0;
  uint32_t depth = 0;        // requests in flight
  double bytes_per_s = 0.0;  // median of the runs
  double latency_us = 0.0;   // median of one request, from its submission on
  double latency_p99_us = 0.0;
  bool operator==(const StorageRate&) const = default;
};

struct StorageProfile {
  std::string folder;
  uint32_t alignment_bytes = 1;  // of direct reads
  std::vector<StorageRate> rates;
  bool operator==(const StorageProfile&) const = default;
};

// One operation of a decoding step, all layers together.
struct OperationRow {
  std::string operation;                  // as the device's profile names it
  std::map<std::string, uint32_t> shape;  // "batch", "ctx", "entries", "rank", ..: what it depends on
  double us = 0.0;                        // per step
  bool operator==(const OperationRow&) const = default;
};

struct DeviceProfile {
  MachineIdentity machine;
  std::string model;              // name, for people
  std::string model_fingerprint;  // ModelFingerprint
  StorageProfile storage;
  std::vector<OperationRow> operations;
  bool operator==(const DeviceProfile&) const = default;
};

std::string ProfileToJson(const DeviceProfile& profile);
// Refuses what is no such text, another version, and numbers that are no times.
Result<DeviceProfile> ProfileFromJson(std::string_view text);
// The messages name the file.
Result<DeviceProfile> ReadProfile(const std::string& path);

}  // namespace kvrun::offline
