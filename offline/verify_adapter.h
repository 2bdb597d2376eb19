// What must hold of an adapter, and of the model it is for: `kvadapt verify`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/math/adapter.h"

namespace kvrun::offline {

struct AdapterCheck {
  std::string name;  // "fingerprint", "shape", "finite", ..
  bool ok = false;
  std::string detail;  // with numbers; of a failure: where, and what is wrong
  bool operator==(const AdapterCheck&) const = default;
};

// The model that it is held against.
struct AdapterTarget {
  std::string fingerprint;
  uint32_t n_layers = 0;
  uint32_t n_kv_heads = 0;
  uint32_t key_dim = 0;
};

// All checks, in the order in which they are shown. Where the shape is wrong, nothing else is looked at but
// the fingerprint.
std::vector<AdapterCheck> VerifyAdapter(const Adapter& adapter, const AdapterTarget& target);

// The same of files. What cannot be read, a wrong checksum included, is an error. Needs no device.
Result<std::vector<AdapterCheck>> VerifyAdapterFile(const std::string& adapter_path,
                                                    const std::string& model_path);

}  // namespace kvrun::offline
