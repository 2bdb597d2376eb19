// A layer's entries of the sequence that a prompt is computed of, as prefill has them on the device: for
// methods that store a layer when all of it is there, and not group by group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

// As many queries as are known at most.
inline constexpr uint32_t kPromptQueries = 64;

class PromptEntries {
 public:
  virtual ~PromptEntries() = default;

  // Entries [begin, end) of one KV head, before the prompt's end: as records of one entry each
  // (KvPlan::record), in order, with the first one's position. Each is visited once. Of kKeys, records have
  // anything for V: half as much may have to be read from flash.
  enum class Want { kKeys, kKeysAndValues };
  using RecordsFn = std::function<Status(uint32_t first, std::span<const std::byte> records)>;
  virtual Status VisitRecords(uint32_t head, uint32_t begin, uint32_t end, Want want,
                              const RecordsFn& visit) = 0;
  // What the prompt's rows that are observed (KvPlan::observed_rows), or the first or last of them, give to
  // entries [0, end): mass [n_moments, n_kv_heads, end], which the caller makes large enough. Rows that are
  // observed for others are not told apart.
  enum class Rows { kAll, kFirst, kLast };
  virtual Status Mass(const MassForm& form, uint32_t end, Rows rows, std::span<float> mass) = 0;
  // How many rows that were, and how many of the prompt's each stands for.
  struct Observed {
    uint32_t n_rows = 0;
    uint32_t stride = 1;
  };
  virtual Observed observed() const = 0;
  // Some of the prompt's last queries, rotated: float [n_queries(), n_heads * head_dim], in no order. There
  // may be none.
  virtual uint32_t n_queries() const = 0;
  virtual std::span<const float> queries() const = 0;
};

}  // namespace kvrun
