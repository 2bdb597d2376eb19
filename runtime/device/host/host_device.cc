#include "runtime/device/host/host_device.h"

#include <fmt/format.h>
#include <sched.h>
#include <system_error>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "platform/io/cpu_name.h"
#include "runtime/device/host/host_command_list.h"
#include "runtime/device/host/host_cores.h"
#include "runtime/device/host/instruction_sets.h"
#include "runtime/device/host/operations.h"

namespace kvrun::host {
namespace {

// Direct I/O goes straight to large buffers, such as a chunk's hidden states; small ones would waste pages.
std::align_val_t AlignmentOf(uint64_t size_bytes) {
  constexpr uint64_t kLargeBytes = 512 * kKiB;
  constexpr uint64_t kPageBytes = 4096;
  return std::align_val_t{size_bytes >= kLargeBytes ? kPageBytes : kMemoryAlignmentBytes};
}

constexpr uint64_t kMappedBytes = 2 * kMiB;

std::shared_ptr<std::byte> NewZeros(uint64_t size_bytes) {
  if (size_bytes >= kMappedBytes) return MapZeros(size_bytes);
  const std::align_val_t alignment = AlignmentOf(size_bytes);
  auto* data = static_cast<std::byte*>(::operator new[](size_bytes, alignment, std::nothrow));
  if (data == nullptr) return nullptr;
  std::memset(data, 0, size_bytes);
  return {data, [alignment](std::byte* bytes) { ::operator delete[](bytes, alignment); }};
}

constexpr size_t kQueuedLists = 1024;  // more are possible, but allocate
constexpr double kLeastUse = 0.75;     // of threads by strands; else all of them compute each operation

// Runs it, and inverts the first word that it changed.
void RunAndSpoil(const HostOperation& operation, ThreadPool& pool) {
  auto* words = Data<uint32_t>(operation.result);
  const std::vector<uint32_t> before(words, words + operation.result->size_bytes() / sizeof(uint32_t));
  operation.run(pool);
  const auto changed = std::mismatch(before.begin(), before.end(), words);
  if (changed.first != before.end()) *changed.second = ~*changed.second;
}

}  // namespace

void MemoryAccount::Add(std::string_view part, uint64_t bytes) {
  if (bytes == 0) return;  // parts of nothing are not listed
  const std::lock_guard lock(mutex_);
  const auto found = bytes_.find(part);
  if (found != bytes_.end())
    found->second += bytes;
  else
    bytes_.emplace(part, bytes);
}

void MemoryAccount::Remove(std::string_view part, uint64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  const auto found = bytes_.find(part);
  KVRUN_CHECK(found != bytes_.end() && found->second >= bytes);
  found->second -= bytes;
  if (found->second == 0) bytes_.erase(found);
}

std::vector<Device::MemoryPart> MemoryAccount::Parts() const {
  const std::lock_guard lock(mutex_);
  std::vector<Device::MemoryPart> parts;
  for (const auto& [part, bytes] : bytes_) parts.push_back({part, bytes});
  return parts;
}

Result<std::unique_ptr<HostMemory>> HostMemory::Allocate(std::shared_ptr<MemoryAccount> account,
                                                         std::string_view part, uint64_t size_bytes) {
  return Of(std::move(account), part, NewZeros(size_bytes + kMemorySlackBytes), size_bytes);
}

Result<std::unique_ptr<HostMemory>> HostMemory::AllocateInArena(std::shared_ptr<MemoryAccount> account,
                                                                std::string_view part, uint64_t size_bytes) {
  std::shared_ptr<std::byte> data = account->arena().Allocate(size_bytes + kMemorySlackBytes);
  return Of(std::move(account), part, std::move(data), size_bytes);
}

Result<std::unique_ptr<HostMemory>> HostMemory::Of(std::shared_ptr<MemoryAccount> account,
                                                   std::string_view part, std::shared_ptr<std::byte> data,
                                                   uint64_t size_bytes) {
  if (data == nullptr) {
    return Status(StatusCode::kOutOfMemory,
                  fmt::format("there is not enough memory for {} ({})", part, FormatBytes(size_bytes)));
  }
  return std::unique_ptr<HostMemory>(new HostMemory(std::move(account), part, std::move(data), size_bytes));
}

HostMemory::HostMemory(std::shared_ptr<MemoryAccount> account, std::string_view part,
                       std::shared_ptr<std::byte> data, uint64_t size_bytes)
    : account_(std::move(account)), part_(part), data_(std::move(data)), size_bytes_(size_bytes) {
  account_->Add(part_, size_bytes_);
}

HostMemory::~HostMemory() { account_->Remove(part_, size_bytes_); }

Result<std::unique_ptr<HostDevice>> HostDevice::Create(const HostDeviceOptions& options) {
  if (!options.instruction_set.empty()) KVRUN_RETURN_IF_ERROR(UseInstructionSet(options.instruction_set));
  std::unique_ptr<HostDevice> device(new HostDevice(options, ChooseThreads(options.n_threads)));
  try {
    device->thread_ = std::thread([raw = device.get()] { raw->Main(); });
  } catch (const std::system_error& error) {
    return StatusFromErrno(error.code().value(), "cannot start a thread on the CPU (ulimit -u limits them)");
  }
  return device;
}

HostDevice::HostDevice(const HostDeviceOptions& options, const ThreadChoice& threads)
    : options_(options), pool_(threads.n_threads, threads.stay_on) {
  for (uint32_t i = 0; i < pool_.size(); ++i) of_strands_.push_back(std::make_unique<ThreadPool>(1));
  queue_.reserve(kQueuedLists);
  waiters_.resize(kMostWaiters);
  reached_.reserve(kMostWaiters);
  info_.name = CpuName();
  info_.kind = "cpu";
  info_.driver = "kvrun host";
  info_.plan =
      fmt::format("{} thread{}{}, {}, {}", pool_.size(), pool_.size() == 1 ? "" : "s",
                  threads.reason.empty() ? "" : fmt::format(" ({})", threads.reason), InstructionSetName(),
                  options.exact_activations ? "float activations" : "activations of 8 bits");
  if (!options.note.empty()) info_.notes.push_back(options.note);
  info_.is_cpu = info_.decodes_on_cpu = true;
  info_.max_buffer_bytes = std::numeric_limits<uint64_t>::max();
}

HostDevice::~HostDevice() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<std::unique_ptr<Buffer>> HostDevice::CreateBuffer(uint64_t size_bytes, BufferUse use,
                                                         std::string_view part) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> memory,
                         HostMemory::Allocate(account_, part, size_bytes));
  return std::unique_ptr<Buffer>(new HostBuffer(std::move(memory), size_bytes, use));
}

Result<std::unique_ptr<Buffer>> HostDevice::CreateConstants(std::span<const std::byte> bytes,
                                                            std::string_view part) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                         CreateBuffer(bytes.size(), BufferUse::kDevice, part));
  std::copy(bytes.begin(), bytes.end(), Data<std::byte>(buffer.get()));
  return buffer;
}

Result<std::unique_ptr<Matrix>> HostDevice::CreateMatrix(TensorType type, uint32_t n_cols,
                                                         std::span<const MatrixSource> sources) {
  return PackMatrix(account_, pool_, type, n_cols, sources);
}

uint64_t HostDevice::AttendScratchBytes(const AttentionArgs& args) const {
  return host::AttendScratchBytes(args);
}

uint64_t HostDevice::AttendSlotsScratchBytes(const SlotAttentionArgs& args) const {
  return host::AttendSlotsScratchBytes(args);
}

uint64_t HostDevice::ScoreScratchBytes(const ScoreArgs& args) const { return host::ScoreScratchBytes(args); }

Result<std::unique_ptr<CommandList>> HostDevice::CreateCommandList() {
  return std::unique_ptr<CommandList>(std::make_unique<HostCommandList>(*this));
}

Result<uint64_t> HostDevice::Submit(CommandList& list, uint64_t wait_host) {
  uint64_t value = 0;
  {
    const std::lock_guard lock(mutex_);
    value = ++last_value_;
    if (queue_begin_ > 0 && queue_.size() == queue_.capacity()) {
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(std::exchange(queue_begin_, 0)));
    }
    queue_.push_back({static_cast<const HostCommandList*>(&list), value, wait_host});
  }
  changed_.notify_one();
  return value;
}

uint64_t HostDevice::ReserveHostValues(uint32_t count) {
  const std::lock_guard lock(mutex_);
  const uint64_t first = last_host_value_ + 1;
  last_host_value_ += count;
  return first;
}

Status HostDevice::SignalHost(uint64_t value) {
  {
    const std::lock_guard lock(mutex_);
    host_value_ = std::max(host_value_, value);
  }
  changed_.notify_all();
  return Status::Ok();
}

Status HostDevice::Wait(uint64_t value) {
  std::unique_lock lock(mutex_);
  if (completed_ >= value) return Status::Ok();
  auto waiter = std::find_if(waiters_.begin(), waiters_.end(), [](const Waiter& w) { return w.value == 0; });
  if (waiter == waiters_.end()) waiter = waiters_.emplace(waiters_.end());
  waiter->value = value;
  waiter->reached.wait(lock, [&] { return completed_ >= value; });
  waiter->value = 0;
  return Status::Ok();
}

Result<uint64_t> HostDevice::Completed() {
  const std::lock_guard lock(mutex_);
  return completed_;
}

// Those that are to be woken.
void HostDevice::FindReached() {
  reached_.clear();
  for (Waiter& waiter : waiters_) {
    if (waiter.value != 0 && waiter.value <= completed_) reached_.push_back(&waiter);
  }
}

// What was submitted is carried out even while stopping: whoever waits for it must come back. Whom a list's
// end wakes does not find the mutex taken, where the next list may begin.
void HostDevice::Main() {
  pool_.PlaceCaller();
  const auto is_ready = [this] {
    if (queue_begin_ == queue_.size()) return stopping_;
    const Submitted& next = queue_[queue_begin_];
    return next.list->await_at() > 0 || next.wait_host <= host_value_;
  };
  const auto wake = [this] {
    for (Waiter* waiter : reached_) pool_.Notify(waiter->reached);
    reached_.clear();
  };
  // Where this thread has nothing to compute. A worker that spins would keep its core from the thread it
  // woke.
  const auto wake_by_itself = [this] {
    for (Waiter* waiter : reached_) waiter->reached.notify_one();
    reached_.clear();
    pool_.NotifyLeft();
  };
  std::unique_lock lock(mutex_);
  while (true) {
    if (!is_ready()) {
      wake_by_itself();
      changed_.wait(lock, is_ready);
    }
    if (queue_begin_ == queue_.size()) return wake_by_itself();
    const Submitted next = queue_[queue_begin_++];
    lock.unlock();
    wake();
    Execute(*next.list, next.wait_host);
    lock.lock();
    completed_ = next.value;
    FindReached();
  }
}

void HostDevice::Execute(const HostCommandList& list, uint64_t wait_host) {
  const auto kept = KeepInstructionSet();
  RunPart(list, 0, list.await_at());
  if (list.await_at() > 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return wait_host <= host_value_; });
  }
  RunPart(list, list.await_at(), list.operations().size());
}

void HostDevice::RunPart(const HostCommandList& list, size_t begin, size_t end) {
  const std::span<const HostOperation> operations = list.operations();
  auto strands = list.strands().begin();
  for (size_t i = begin; i < end;) {
    while (strands != list.strands().end() && strands->front().begin < i) ++strands;
    if (strands != list.strands().end() && strands->front().begin == i && AreWorthAThread(strands->size())) {
      RunStrands(operations, *strands);
      i = strands++->back().end;
    } else {
      Run(operations[i++]);
    }
    pool_.NotifyLeft();
  }
}

// As many at a time as there are threads: the last ones should not leave most of these without work.
bool HostDevice::AreWorthAThread(size_t n_strands) const {
  if (options_.profile || !options_.spoiled_operation.empty()) return false;
  const size_t n_threads = of_strands_.size();
  const size_t n_turns = (n_strands + n_threads - 1) / n_threads;
  return n_threads > 1 &&
         kLeastUse * static_cast<double>(n_threads * n_turns) <= static_cast<double>(n_strands);
}

void HostDevice::RunStrands(std::span<const HostOperation> operations, std::span<const Strand> strands) {
  pool_.ParallelFor(
      strands.size(), 1,
      [&](size_t first, size_t last, uint32_t worker) {
        for (size_t nth = first; nth < last; ++nth) {
          for (size_t i = strands[nth].begin; i < strands[nth].end; ++i)
            operations[i].run(*of_strands_[worker]);
        }
      },
      Pieces::kOneByOne);
}

void HostDevice::Run(const HostOperation& operation) {
  if (operation.name == options_.spoiled_operation) return RunAndSpoil(operation, pool_);
  if (!options_.profile) return operation.run(pool_);
  const auto begin = std::chrono::steady_clock::now();
  operation.run(pool_);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  OperationTime& time = times_[std::string(operation.name)];
  time.name = operation.name;
  ++time.count;
  time.milliseconds += took.count();
}

std::vector<OperationTime> HostDevice::TakeOperationTimes() {
  const std::lock_guard lock(mutex_);
  std::vector<OperationTime> times;
  for (auto& [name, time] : times_) times.push_back(std::move(time));
  times_.clear();
  return times;
}

Status HostDevice::WaitForAll() {
  uint64_t last = 0;
  {
    const std::lock_guard lock(mutex_);
    last = last_value_;
  }
  return Wait(last);
}

Status HostDevice::Download(const Buffer& from, uint64_t offset_bytes, std::span<std::byte> to) {
  KVRUN_RETURN_IF_ERROR(WaitForAll());
  std::memcpy(to.data(), Data<std::byte>(&from) + offset_bytes, to.size());
  return Status::Ok();
}

Status HostDevice::Upload(std::span<const std::byte> from, Buffer* to, uint64_t offset_bytes) {
  KVRUN_RETURN_IF_ERROR(WaitForAll());
  std::memcpy(Data<std::byte>(to) + offset_bytes, from.data(), from.size());
  return Status::Ok();
}

}  // namespace kvrun::host
