// What host_bench times of a decoded token's attention: layers in turn, each with memory of its own, as many
// as do not stay in a last-level cache. Elements are random bits that are numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/device/device.h"
#include "tests/bench/mass_case.h"

namespace kvrun::testing {

struct AttendShape {
  std::string_view name;
  uint32_t n_layers;
  uint32_t n_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
};

// All KV in memory, as halves, or groups of four entries in slots in an order of chance, and behind them a
// window of 64 entries of halves.
class AttendCase {
 public:
  static AttendCase InMemory(const BufferMaker& make, const AttendShape& shape, uint32_t n_entries);
  static AttendCase InSlots(const BufferMaker& make, const AttendShape& shape, uint32_t n_entries,
                            KvType k_type, KvType v_type);

  uint32_t n_layers() const { return static_cast<uint32_t>(layers_.size()); }
  uint64_t layer_bytes() const { return layer_bytes_; }  // of K, V and scales that are attended to
  // Buffers of a layer's KV, with what else lies there.
  std::vector<Buffer*> Memory(uint32_t layer) const;
  bool has_slots() const { return has_slots_; }
  // Scratch memory is the caller's to name.
  const SlotAttentionArgs& Args(uint32_t layer) const { return layers_[layer].args; }
  const Buffer& output() const { return *output_; }

 private:
  struct Layer {
    std::unique_ptr<Buffer> kv;  // or slots
    std::unique_ptr<Buffer> table;
    std::unique_ptr<Buffer> window;
    std::unique_ptr<Buffer> window_table;
    SlotAttentionArgs args;
  };
  AttendCase(const BufferMaker& make, const AttendShape& shape, uint32_t n_entries);

  AttentionArgs Attention() const;

  AttendShape shape_;
  uint32_t n_entries_;
  bool has_slots_ = false;
  uint64_t layer_bytes_ = 0;
  std::unique_ptr<Buffer> qkv_;
  std::unique_ptr<Buffer> step_;
  std::unique_ptr<Buffer> output_;
  std::vector<Layer> layers_;
};

}  // namespace kvrun::testing
