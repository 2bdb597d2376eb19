// The CPU as a device: the operations of runtime/device/device.h on threads of this process.
//
// A submitted list is carried out by the device's own thread (worker 0 of a ThreadPool), operation after
// operation, each divided among the workers. Buffers are this process's memory: host() of every use but
// kDevice, Flush and Invalidate have nothing to do.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/device/host/host_cores.h"
#include "runtime/device/host/memory_arena.h"
#include "runtime/device/host/thread_pool.h"

namespace kvrun::host {

// What buffers and matrices of one device hold, by part. Thread-safe.
class MemoryAccount {
 public:
  void Add(std::string_view part, uint64_t bytes);
  void Remove(std::string_view part, uint64_t bytes);
  std::vector<Device::MemoryPart> Parts() const;
  // What matrices lie in.
  MemoryArena& arena() { return arena_; }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t, std::less<>> bytes_;
  MemoryArena arena_;
};

// What operations on the CPU may expect of a buffer's memory.
inline constexpr uint64_t kMemoryAlignmentBytes = 64;
inline constexpr uint64_t kMemorySlackBytes = 256;  // of zeros after it, not in the statistics

// Memory of an account: zeros, aligned, and with slack.
class HostMemory {
 public:
  static Result<std::unique_ptr<HostMemory>> Allocate(std::shared_ptr<MemoryAccount> account,
                                                      std::string_view part, uint64_t size_bytes);
  // In the account's arena.
  static Result<std::unique_ptr<HostMemory>> AllocateInArena(std::shared_ptr<MemoryAccount> account,
                                                             std::string_view part, uint64_t size_bytes);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::byte* data() const { return data_.get(); }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  static Result<std::unique_ptr<HostMemory>> Of(std::shared_ptr<MemoryAccount> account, std::string_view part,
                                                std::shared_ptr<std::byte> data, uint64_t size_bytes);
  HostMemory(std::shared_ptr<MemoryAccount> account, std::string_view part, std::shared_ptr<std::byte> data,
             uint64_t size_bytes);

  std::shared_ptr<MemoryAccount> account_;
  std::string part_;
  std::shared_ptr<std::byte> data_;
  uint64_t size_bytes_;
};

class HostBuffer : public Buffer {
 public:
  HostBuffer(std::unique_ptr<HostMemory> memory, uint64_t size_bytes, BufferUse use)
      : Buffer(size_bytes), memory_(std::move(memory)), data_(memory_->data()), use_(use) {}
  // A view of memory that is not its own, which must outlive it: aligned as HostMemory, with zeros after it.
  explicit HostBuffer(std::span<std::byte> bytes)
      : Buffer(bytes.size()), data_(bytes.data()), use_(BufferUse::kShared) {}

  std::span<std::byte> host() override {
    return IsOfDevice(use_) ? std::span<std::byte>{} : std::span(data_, size_bytes_);
  }
  Status Flush(uint64_t, uint64_t) override { return Status::Ok(); }
  Status Invalidate(uint64_t, uint64_t) override { return Status::Ok(); }
  // Whatever the use: for operations.
  std::byte* data() const { return data_; }

 private:
  std::unique_ptr<HostMemory> memory_;  // null: a view
  std::byte* data_;
  BufferUse use_;
};

// A buffer's content, for operations. `T` is what the operation's arguments say that it holds.
template <typename T>
T* Data(Buffer* buffer) {
  return reinterpret_cast<T*>(static_cast<HostBuffer*>(buffer)->data());
}
template <typename T>
const T* Data(const Buffer* buffer) {
  return reinterpret_cast<const T*>(static_cast<const HostBuffer*>(buffer)->data());
}

struct HostDeviceOptions {
  uint32_t n_threads = 0;  // 0: one for each performance core, within the quota
  // Matrix products, attention and scores take floats; else products and scores of an index round them to 8
  // bits, and attention to 16.
  bool exact_activations = false;
  // As UseInstructionSet has it, for all devices of the process; empty: as it is.
  std::string instruction_set = {};
  bool profile = false;
  std::string note;  // of the choice of device, for DeviceInfo::notes; may be empty
  // For tests of self-tests: operations of this name get one of their results wrong. Empty: none.
  std::string spoiled_operation = {};
};

class HostCommandList;
struct HostOperation;
struct Strand;

class HostDevice : public Device {
 public:
  static Result<std::unique_ptr<HostDevice>> Create(const HostDeviceOptions& options);
  ~HostDevice() override;

  const DeviceInfo& info() const override { return info_; }
  bool FitsKv(const KvShape& shape) const override {
    return shape.size_bytes() <= std::numeric_limits<uint32_t>::max();
  }
  Result<std::unique_ptr<Buffer>> CreateBuffer(uint64_t size_bytes, BufferUse use,
                                               std::string_view part) override;
  Result<std::unique_ptr<Buffer>> CreateConstants(std::span<const std::byte> bytes,
                                                  std::string_view part) override;
  Result<std::unique_ptr<Matrix>> CreateMatrix(TensorType type, uint32_t n_cols,
                                               std::span<const MatrixSource> sources) override;
  uint64_t AttendScratchBytes(const AttentionArgs& args) const override;
  uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs& args) const override;
  uint64_t ScoreScratchBytes(const ScoreArgs& args) const override;
  Result<std::unique_ptr<CommandList>> CreateCommandList() override;
  Result<uint64_t> Submit(CommandList& list, uint64_t wait_host = 0) override;
  uint64_t ReserveHostValues(uint32_t count) override;
  Status SignalHost(uint64_t value) override;
  Status Wait(uint64_t value) override;
  Result<uint64_t> Completed() override;
  Status DropUnusedKernels() override { return Status::Ok(); }
  std::vector<MemoryPart> MemoryInUse() const override { return account_->Parts(); }
  std::vector<OperationTime> TakeOperationTimes() override;
  using Device::Download;
  Status Download(const Buffer& from, uint64_t offset_bytes, std::span<std::byte> to) override;
  Status Upload(std::span<const std::byte> from, Buffer* to, uint64_t offset_bytes) override;

  bool exact_activations() const { return options_.exact_activations; }
  ThreadPool& pool() { return pool_; }

 private:
  Status WaitForAll();
  struct Submitted {
    const HostCommandList* list;
    uint64_t value;
    uint64_t wait_host;
  };

  HostDevice(const HostDeviceOptions& options, const ThreadChoice& threads);
  void Main();
  void Execute(const HostCommandList& list, uint64_t wait_host);
  void RunPart(const HostCommandList& list, size_t begin, size_t end);
  void Run(const HostOperation& operation);
  bool AreWorthAThread(size_t n_strands) const;
  void RunStrands(std::span<const HostOperation> operations, std::span<const Strand> strands);

  HostDeviceOptions options_;
  DeviceInfo info_;
  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  // Who waits for a value, while that is not 0. Each is woken when it is reached, and not before: a list is
  // completed some hundred times a token, and waking a thread takes as long as a small operation.
  struct Waiter {
    uint64_t value = 0;
    std::condition_variable reached;
  };
  // At once: an engine's thread and the KV thread. More are made where they are needed.
  static constexpr size_t kMostWaiters = 8;

  // kMostWaiters, or more; guarded by mutex_. The pool's workers notify them, so they outlive it.
  std::list<Waiter> waiters_;
  ThreadPool pool_;
  std::vector<std::unique_ptr<ThreadPool>>
      of_strands_;  // of one thread each: what a worker of pool_ computes with

  void FindReached();

  std::mutex mutex_;                 // guards what follows
  std::condition_variable changed_;  // what the device's thread waits for: a list, a host's value, the end
  std::vector<Waiter*> reached_;     // the device's thread's own: to be woken
  // Those from queue_begin_ on are to be carried out. Has room for what any step submits ahead, a list per
  // layer: how many wait at a time depends on time, and a decoded token must not allocate.
  std::vector<Submitted> queue_;
  size_t queue_begin_ = 0;
  uint64_t last_value_ = 0;
  uint64_t completed_ = 0;
  uint64_t last_host_value_ = 0;
  uint64_t host_value_ = 0;
  bool stopping_ = false;
  std::map<std::string, OperationTime> times_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kvrun::host
