#include "runtime/device/pair/pair_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "platform/base/check.h"
#include "runtime/device/pair/pair_command_list.h"

namespace kvrun::pair {
namespace {

constexpr size_t kSubmittedAtOnce = 1024;  // without growing

DeviceInfo MakeInfo(const PairParts& parts) {
  const DeviceInfo& prefill = parts.prefill->info();
  const DeviceInfo& decode = parts.decode->info();
  DeviceInfo info;
  info.name = fmt::format("{} (prefill) and {} (decoding)", prefill.name, decode.name);
  info.kind = prefill.kind;
  info.driver = fmt::format("{}; {}", prefill.driver, decode.driver);
  info.plan = fmt::format("prefill: {}; decoding, up to {} rows: {}", prefill.plan, parts.max_decode_rows,
                          decode.plan);
  info.notes = prefill.notes;
  info.notes.insert(info.notes.end(), decode.notes.begin(), decode.notes.end());
  info.notes.insert(info.notes.end(), parts.notes.begin(), parts.notes.end());
  info.notes.emplace_back(
      "the weights are held twice, once for each device: name one of the two devices alone to hold them "
      "once");
  info.is_cpu = prefill.is_cpu && decode.is_cpu;
  info.decodes_on_cpu = decode.decodes_on_cpu;
  info.max_buffer_bytes = std::min(prefill.max_buffer_bytes, decode.max_buffer_bytes);
  return info;
}

// The operation with one device's own operands.
template <typename Args>
Args OnSide(Side side, Args args) {
  Operation operation = std::move(args);
  Translator translate(side);
  VisitOperands(operation, translate);
  return std::get<Args>(std::move(operation));
}

}  // namespace

PairDevice::PairDevice(PairParts parts) : parts_(std::move(parts)), info_(MakeInfo(parts_)) {
  submitted_.reserve(kSubmittedAtOnce);
}

Result<std::unique_ptr<PairBuffer>> PairDevice::NewBuffer(uint64_t size_bytes, BufferUse use,
                                                          std::string_view part) {
  KVRUN_ASSIGN_OR_RETURN(SharedBuffer shared, parts_.make_shared(size_bytes, use, part));
  KVRUN_CHECK(shared.bytes != nullptr);
  return std::make_unique<PairBuffer>(coherence_, std::move(shared), size_bytes, use);
}

Result<std::unique_ptr<Buffer>> PairDevice::CreateBuffer(uint64_t size_bytes, BufferUse use,
                                                         std::string_view part) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<PairBuffer> buffer, NewBuffer(size_bytes, use, part));
  return std::unique_ptr<Buffer>(std::move(buffer));
}

Result<std::unique_ptr<Buffer>> PairDevice::CreateConstants(std::span<const std::byte> bytes,
                                                            std::string_view part) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<PairBuffer> buffer,
                         NewBuffer(bytes.size(), BufferUse::kDevice, part));
  std::memcpy(host::Data<std::byte>(buffer->On(Side::kDecode)), bytes.data(), bytes.size());
  KVRUN_RETURN_IF_ERROR(buffer->Flush(0, bytes.size()));
  return std::unique_ptr<Buffer>(std::move(buffer));
}

Result<std::unique_ptr<Matrix>> PairDevice::CreateMatrix(TensorType type, uint32_t n_cols,
                                                         std::span<const MatrixSource> sources) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Matrix> prefill,
                         parts_.prefill->CreateMatrix(type, n_cols, sources));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Matrix> decode, parts_.decode->CreateMatrix(type, n_cols, sources));
  return std::unique_ptr<Matrix>(std::make_unique<PairMatrix>(std::move(prefill), std::move(decode)));
}

uint64_t PairDevice::AttendScratchBytes(const AttentionArgs& args) const {
  return std::max(parts_.prefill->AttendScratchBytes(OnSide(Side::kPrefill, AttendOp{args}).args),
                  parts_.decode->AttendScratchBytes(OnSide(Side::kDecode, AttendOp{args}).args));
}

uint64_t PairDevice::AttendSlotsScratchBytes(const SlotAttentionArgs& args) const {
  return std::max(parts_.prefill->AttendSlotsScratchBytes(OnSide(Side::kPrefill, AttendSlotsOp{args}).args),
                  parts_.decode->AttendSlotsScratchBytes(OnSide(Side::kDecode, AttendSlotsOp{args}).args));
}

uint64_t PairDevice::ScoreScratchBytes(const ScoreArgs& args) const {
  return std::max(parts_.prefill->ScoreScratchBytes(OnSide(Side::kPrefill, args)),
                  parts_.decode->ScoreScratchBytes(OnSide(Side::kDecode, args)));
}

Result<std::unique_ptr<CommandList>> PairDevice::CreateCommandList() {
  return std::unique_ptr<CommandList>(std::make_unique<PairCommandList>(*this));
}

Status PairDevice::SwitchTo(Side side) {
  if (side == coherence_->side()) return Status::Ok();
  uint64_t last = 0;
  {
    const std::lock_guard lock(mutex_);
    last = last_value_;
  }
  KVRUN_RETURN_IF_ERROR(Wait(last));
  return coherence_->HandOver(side);
}

Result<uint64_t> PairDevice::Submit(CommandList& list, uint64_t wait_host) {
  auto& pair_list = static_cast<PairCommandList&>(list);
  const Side side = pair_list.side();
  const std::lock_guard submitting(submit_mutex_);
  KVRUN_RETURN_IF_ERROR(SwitchTo(side));
  coherence_->NoteWritten(pair_list.written());
  KVRUN_ASSIGN_OR_RETURN(const uint64_t side_value, On(side).Submit(pair_list.own(), wait_host));
  const std::lock_guard lock(mutex_);
  submitted_.push_back({++last_value_, side, side_value});
  return last_value_;
}

// The same values on both, as a list may come to wait on either.
uint64_t PairDevice::ReserveHostValues(uint32_t count) {
  const std::lock_guard lock(mutex_);
  const uint64_t first = parts_.prefill->ReserveHostValues(count);
  KVRUN_CHECK(parts_.decode->ReserveHostValues(count) == first);
  return first;
}

// On both, whatever fails: neither may wait for ever.
Status PairDevice::SignalHost(uint64_t value) {
  const Status prefill = parts_.prefill->SignalHost(value);
  const Status decode = parts_.decode->SignalHost(value);
  return prefill.ok() ? decode : prefill;
}

Status PairDevice::Wait(uint64_t value) {
  std::optional<Submitted> last;
  {
    const std::lock_guard lock(mutex_);
    for (const Submitted& entry : submitted_) {
      if (entry.value > value) break;
      last = entry;
    }
  }
  if (!last) return Status::Ok();  // waited for before
  KVRUN_RETURN_IF_ERROR(On(last->side).Wait(last->side_value));
  const std::lock_guard lock(mutex_);
  std::erase_if(submitted_, [&](const Submitted& entry) { return entry.value <= last->value; });
  waited_ = std::max(waited_, last->value);
  return Status::Ok();
}

Result<uint64_t> PairDevice::Completed() {
  const std::lock_guard lock(mutex_);
  if (submitted_.empty()) return waited_;
  const Side side = submitted_.back().side;
  KVRUN_ASSIGN_OR_RETURN(const uint64_t side_value, On(side).Completed());
  uint64_t completed = waited_;
  for (const Submitted& entry : submitted_) {
    if (entry.side == side && entry.side_value > side_value) break;
    completed = entry.value;
  }
  return completed;
}

Status PairDevice::DropUnusedKernels() {
  KVRUN_RETURN_IF_ERROR(parts_.prefill->DropUnusedKernels());
  return parts_.decode->DropUnusedKernels();
}

std::vector<Device::MemoryPart> PairDevice::MemoryInUse() const {
  std::map<std::string, uint64_t> bytes;
  for (const MemoryPart& part : parts_.prefill->MemoryInUse()) bytes[part.part] += part.bytes;
  for (const MemoryPart& part : parts_.decode->MemoryInUse()) bytes[part.part] += part.bytes;
  std::vector<MemoryPart> parts;
  for (const auto& [part, total] : bytes) parts.push_back({part, total});
  std::stable_sort(parts.begin(), parts.end(),
                   [](const MemoryPart& a, const MemoryPart& b) { return a.bytes > b.bytes; });
  return parts;
}

std::vector<OperationTime> PairDevice::TakeOperationTimes() {
  std::vector<OperationTime> times = parts_.prefill->TakeOperationTimes();
  for (OperationTime& time : parts_.decode->TakeOperationTimes()) {
    time.name = "decode: " + time.name;
    times.push_back(std::move(time));
  }
  std::stable_sort(times.begin(), times.end(), [](const OperationTime& a, const OperationTime& b) {
    return a.milliseconds > b.milliseconds;
  });
  return times;
}

Status PairDevice::Download(const Buffer& from, uint64_t offset_bytes, std::span<std::byte> to) {
  const std::lock_guard submitting(submit_mutex_);
  const Side side = coherence_->side();
  return On(side).Download(*static_cast<const PairBuffer&>(from).On(side), offset_bytes, to);
}

Status PairDevice::Upload(std::span<const std::byte> from, Buffer* to, uint64_t offset_bytes) {
  const std::lock_guard submitting(submit_mutex_);
  const Side side = coherence_->side();
  return On(side).Upload(from, static_cast<PairBuffer*>(to)->On(side), offset_bytes);
}

}  // namespace kvrun::pair
