// What computes: a device carries out operations on buffers, in the order in which they were recorded.
//
// The engine sees nothing of Vulkan. An operation is coarse (a matrix product, not an instruction), so that a
// device may fuse, tile and repack as suits it. Every operation has one scalar reference in tests/support,
// which each device is compared with.
//
// Threads: a Device may be used from several threads; a CommandList, Buffer or Matrix by one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

enum class BufferUse : uint8_t {
  kDevice,    // only the device reads and writes it
  kUpload,    // the host writes, the device reads
  kReadback,  // the device writes, the host reads
};

// Zero-filled when made; on the device it reads as zeros for 256 bytes past its end. Freed with the object,
// which must not happen while a submitted list uses it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  uint64_t size_bytes() const { return size_bytes_; }
  // kUpload and kReadback: the host's view, valid for the buffer's life. kDevice: empty.
  virtual std::span<std::byte> host() = 0;

 protected:
  explicit Buffer(uint64_t size_bytes) : size_bytes_(size_bytes) {}
  uint64_t size_bytes_;
};

// A weight matrix [n_rows, n_cols] (y = W x) in the form that the device multiplies with.
class Matrix {
 public:
  virtual ~Matrix() = default;
  uint32_t n_rows() const { return n_rows_; }
  uint32_t n_cols() const { return n_cols_; }
  TensorType type() const { return type_; }
  virtual uint64_t size_bytes() const = 0;  // on the device

 protected:
  Matrix(TensorType type, uint32_t n_rows, uint32_t n_cols) : type_(type), n_rows_(n_rows), n_cols_(n_cols) {}
  TensorType type_;
  uint32_t n_rows_;
  uint32_t n_cols_;
};

// Rows as they lie in a GGUF tensor: `data` holds n_rows * n_cols elements of `type`, row after row.
struct MatrixSource {
  std::span<const std::byte> data;
  uint32_t n_rows = 0;
};

enum class KvType : uint8_t { kF16, kF32 };
constexpr uint32_t KvElementBytes(KvType type) { return type == KvType::kF16 ? 2 : 4; }

// Resident KV of one layer, element type `type`: [n_sequences, n_kv_heads, 2 (K, V), n_ctx, head_dim].
struct KvShape {
  KvType type = KvType::kF16;
  uint32_t n_sequences = 1;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t n_ctx = 0;

  uint64_t size_bytes() const {
    return uint64_t{2} * n_sequences * n_kv_heads * n_ctx * head_dim * KvElementBytes(type);
  }
};

struct MatMulArgs {
  const Matrix* weight = nullptr;  // [n_rows, n_cols]
  const Buffer* input = nullptr;   // float [n_tokens, n_cols]
  Buffer* output = nullptr;        // float [n_tokens, output_stride]
  const Buffer* bias = nullptr;    // float [n_rows] from bias_offset on; null: none
  uint32_t n_tokens = 0;
  uint32_t output_stride = 0;  // elements; 0: n_rows
  uint32_t output_offset = 0;  // elements, of the first row's result
  uint32_t bias_offset = 0;    // elements
  bool accumulate = false;     // add to what is in output
};

// What attention works on: qkv is float [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]: Q, then K, then V.
struct AttentionArgs {
  Buffer* qkv = nullptr;
  // kUpload, a StepParams (shaders/shared/step_params.h): tokens, positions and sequences of the rows are
  // data, so that a recorded list serves any of them.
  const Buffer* step = nullptr;
  Buffer* kv = nullptr;  // one layer, KvShape
  KvShape kv_shape;
  uint32_t n_heads = 0;
  uint32_t n_tokens = 0;
  // float [n_tokens, rotary_dim / 2, 2]: cosine and sine of each row's angles, times the RoPE magnitude. Made
  // by the host: devices differ in the sine of a large angle.
  const Buffer* angles = nullptr;
  const Buffer* norms = nullptr;  // float: q_norm [head_dim], k_norm [head_dim]; null: none
  float norm_epsilon = 0.0F;
  uint32_t rotary_dim = 0;
  bool rope_halves = false;   // pairs are (i, i + rotary_dim / 2), else (2i, 2i + 1)
  Buffer* output = nullptr;   // Attend: float [n_tokens, n_heads * head_dim]
  Buffer* scratch = nullptr;  // Attend: at least Device::AttendScratchBytes
  // All rows are of one sequence at consecutive positions (a prefill chunk).
  bool one_sequence = false;
};

// Operations are carried out as if one after another. Recorded once, finished, then submitted any number of
// times, each time after the one before was waited for. All that an operation names must outlive the list.
class CommandList {
 public:
  virtual ~CommandList() = default;

  // out[t] = row step.tokens[t].id of the table, as float [n_tokens, n_cols].
  virtual Status Embed(const Matrix& table, const Buffer& step, uint32_t n_tokens, Buffer* out) = 0;
  // out[t] = x[t] * weight / sqrt(mean(x[t]^2) + epsilon); float [n_rows, n_cols]; out may be x.
  virtual Status RmsNorm(const Buffer& x, const Buffer& weight, float epsilon, uint32_t n_rows,
                         uint32_t n_cols, Buffer* out) = 0;
  virtual Status MatMul(const MatMulArgs& args) = 0;
  // Normalises (with norms) and rotates Q in place; writes normalised, rotated K and V into the KV buffer at
  // each row's position.
  virtual Status RopeAndStore(const AttentionArgs& args) = 0;
  // output[t] = softmax(Q K^T / sqrt(head_dim)) V over positions 0..position(t) of the row's sequence.
  virtual Status Attend(const AttentionArgs& args) = 0;
  // gate_up: float [n_tokens, 2 * n_ff]; out = silu(gate) * up, float [n_tokens, n_ff].
  virtual Status SwiGlu(const Buffer& gate_up, uint32_t n_tokens, uint32_t n_ff, Buffer* out) = 0;
  // out[i] = x[step.tokens[i].output_row], float [n_rows, n_cols].
  virtual Status GatherRows(const Buffer& x, const Buffer& step, uint32_t n_rows, uint32_t n_cols,
                            Buffer* out) = 0;
  // For benchmarks, not for models: multiply-adds without memory (256 per invocation and step, 64 invocations
  // per group), and reads of neighbouring vectors of 16 bytes (one per invocation and step).
  virtual Status AluRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) = 0;
  virtual Status ReadRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) = 0;
  // Ends recording. What kReadback buffers hold is the host's to read after Device::Wait.
  virtual Status Finish() = 0;
};

struct DeviceInfo {
  std::string name;
  std::string kind;  // "gpu", "integrated", "virtual", "cpu"
  std::string driver;
  std::string plan;                // one line: the paths chosen
  std::vector<std::string> notes;  // quirks that applied, fall-backs taken
  bool is_cpu = false;
  uint64_t max_buffer_bytes = 0;  // the largest Buffer that an operation can use
};

struct OperationTime {
  std::string name;  // the variant that ran
  uint64_t count = 0;
  double milliseconds = 0.0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  // `part` names it in statistics and messages ("kv", "activations").
  virtual Result<std::unique_ptr<Buffer>> CreateBuffer(uint64_t size_bytes, BufferUse use,
                                                       std::string_view part) = 0;
  // A kDevice buffer with this content.
  virtual Result<std::unique_ptr<Buffer>> CreateConstants(std::span<const float> values,
                                                          std::string_view part) = 0;
  // The sources stacked in order; all of one type and n_cols.
  virtual Result<std::unique_ptr<Matrix>> CreateMatrix(TensorType type, uint32_t n_cols,
                                                       std::span<const MatrixSource> sources) = 0;
  // What AttentionArgs::scratch must hold.
  virtual uint64_t AttendScratchBytes(const AttentionArgs& args) const = 0;

  virtual Result<std::unique_ptr<CommandList>> CreateCommandList() = 0;
  // Starts a finished list; answers the timeline value that Wait takes.
  virtual Result<uint64_t> Submit(CommandList& list) = 0;
  virtual Status Wait(uint64_t value) = 0;

  struct MemoryPart {
    std::string part;
    uint64_t bytes;
  };
  virtual std::vector<MemoryPart> MemoryInUse() const = 0;
  // Empty unless the device was opened with profiling; sums since the last call.
  virtual std::vector<OperationTime> TakeOperationTimes() = 0;
};

}  // namespace kvrun
