// A device that writes down what it is asked for, and computes nothing.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/device/host/host_device.h"
#include "tests/support/fake_device.h"

namespace kvrun::testing {

using DeviceLog = std::vector<std::string>;

// In memory of the host, aligned and with slack as the pair asks for.
class LoggedBuffer : public Buffer {
 public:
  LoggedBuffer(std::string part, std::unique_ptr<host::HostMemory> memory, DeviceLog& log)
      : Buffer(memory->size_bytes()), part_(std::move(part)), memory_(std::move(memory)), log_(log) {}

  std::span<std::byte> host() override { return {memory_->data(), size_bytes_}; }
  Status Flush(uint64_t offset, uint64_t length) override { return Note("flush", offset, length); }
  Status Invalidate(uint64_t offset, uint64_t length) override { return Note("invalidate", offset, length); }

 private:
  Status Note(const char* what, uint64_t offset, uint64_t length) {
    log_.push_back(offset == 0 && length == size_bytes_
                       ? fmt::format("{} {}", what, part_)
                       : fmt::format("{} {} {}+{}", what, part_, offset, length));
    return Status::Ok();
  }

  std::string part_;
  std::unique_ptr<host::HostMemory> memory_;
  DeviceLog& log_;
};

class LoggedMatrix : public Matrix {
 public:
  LoggedMatrix(TensorType type, uint32_t n_rows, uint32_t n_cols) : Matrix(type, n_rows, n_cols) {}
  uint64_t size_bytes() const override { return 1000; }
};

// What the last operation was given.
struct GivenToList {
  std::vector<const Buffer*> buffers;
  const Matrix* matrix = nullptr;
};

// The buffers that an operation names, in an order that this test knows.
struct BuffersOf {
  using Buffers = std::vector<const Buffer*>;

  Buffers operator()(const EmbedArgs& a) const { return {a.step, a.out}; }
  Buffers operator()(const RmsNormArgs& a) const { return {a.x, a.weight, a.out}; }
  Buffers operator()(const MatMulArgs& a) const {
    return {a.input, a.output, a.bias, a.norm.weight, a.norm.rows, a.gate.gate_up};
  }
  Buffers operator()(const GatedUnitArgs& a) const { return {a.gate_up, a.out}; }
  Buffers operator()(const SigmoidGateArgs& a) const { return {a.gate, a.values}; }
  Buffers operator()(const GatherRowsArgs& a) const { return {a.x, a.step, a.out}; }
  Buffers operator()(const CopyArgs& a) const { return {a.from, a.to}; }
  Buffers operator()(const ChooseExpertsArgs& a) const { return {a.logits, a.ids, a.weights}; }
  Buffers operator()(const ExpertMatMulArgs& a) const { return {a.input, a.ids, a.weights, a.output}; }
  Buffers operator()(const ShortConvolutionArgs& a) const {
    return {a.input, a.taps, a.state, a.step, a.output};
  }
  Buffers operator()(const DeltaRuleArgs& a) const {
    return {a.qkv, a.gates, a.constants, a.state, a.step, a.output};
  }
  Buffers operator()(const GatedNormArgs& a) const { return {a.values, a.weight, a.gate}; }
  Buffers operator()(const RopeAndStoreOp& a) const { return Of(a.args); }
  Buffers operator()(const AttendOp& a) const { return Of(a.args); }
  Buffers operator()(const AttendNewOp& a) const { return Of(a.args); }
  Buffers operator()(const FinishAttentionOp& a) const { return Of(a.args); }
  Buffers operator()(const RopeAndEncodeOp& a) const { return Of(a.args); }
  Buffers operator()(const AttendSlotsOp& a) const { return Of(a.args); }
  Buffers operator()(const AttendNewSlotsOp& a) const { return Of(a.args); }
  Buffers operator()(const EncodeRecordsArgs& a) const { return {a.kv, a.space.constants, a.records}; }
  Buffers operator()(const DecodeRecordsArgs& a) const { return {a.records, a.space.constants, a.kv}; }
  Buffers operator()(const ScoreArgs& a) const {
    Buffers buffers = Of(a.attention);
    const Buffers sides = Of(a.sides);
    buffers.insert(buffers.end(), sides.begin(), sides.end());
    buffers.insert(buffers.end(), {a.query, a.index, a.scratch, a.chosen});
    return buffers;
  }
  Buffers operator()(const ProjectKeysArgs& a) const {
    Buffers buffers = Of(a.sides);
    buffers.insert(buffers.end(), {a.kv, a.out});
    return buffers;
  }
  Buffers operator()(const GramArgs& a) const { return {a.rows, a.sums}; }
  Buffers operator()(const SumWeightsOp& a) const {
    return {a.args.queries, a.args.step, a.args.kv, a.args.sums};
  }
  Buffers operator()(const AttentionMassOp& a) const {
    return {a.args.queries, a.args.step, a.args.kv, a.args.sums, a.args.mass};
  }
  Buffers operator()(const RateArgs& a) const { return {a.values}; }

 private:
  static Buffers Of(const AttentionArgs& args) {
    return {args.qkv,
            args.step,
            args.kv,
            args.angles,
            args.norms,
            args.output,
            args.scratch,
            args.parts_after.buffer,
            args.parts_before.buffer};
  }
  static Buffers Of(const SlotAttentionArgs& args) {
    Buffers buffers = Of(args.attention);
    for (const SlotSource& source : args.used()) buffers.insert(buffers.end(), {source.slots, source.table});
    return buffers;
  }
  static Buffers Of(const IndexSides& sides) {
    return {sides.query_side, sides.key_side, sides.bias, sides.scales};
  }
};

class LoggedList : public CommandList {
 public:
  LoggedList(DeviceLog& log, GivenToList& given) : log_(log), given_(given) {}

  Status Add(const Operation& operation) override {
    log_.emplace_back(NameOf(operation));
    given_ = {std::visit(BuffersOf(), operation)};
    if (const auto* embed = std::get_if<EmbedArgs>(&operation)) given_.matrix = embed->table;
    if (const auto* product = std::get_if<MatMulArgs>(&operation)) given_.matrix = product->weight;
    if (const auto* product = std::get_if<ExpertMatMulArgs>(&operation)) given_.matrix = product->weight;
    return Status::Ok();
  }
  Status Finish() override { return Status::Ok(); }

 private:
  DeviceLog& log_;
  GivenToList& given_;
};

// Values grow by three with each list, as where a list is several submissions.
class LoggedDevice : public FakeDevice {
 public:
  Result<std::unique_ptr<Matrix>> CreateMatrix(TensorType type, uint32_t n_cols,
                                               std::span<const MatrixSource> sources) override {
    return std::unique_ptr<Matrix>(std::make_unique<LoggedMatrix>(type, sources[0].n_rows, n_cols));
  }
  Result<std::unique_ptr<CommandList>> CreateCommandList() override {
    return std::unique_ptr<CommandList>(std::make_unique<LoggedList>(log, given));
  }
  Result<uint64_t> Submit(CommandList&, uint64_t wait_host) override {
    last_value += 3;
    log.push_back(
        fmt::format("submit {}{}", last_value, wait_host == 0 ? "" : fmt::format(" after {}", wait_host)));
    return last_value;
  }
  uint64_t ReserveHostValues(uint32_t count) override {
    last_host_value += count;
    return last_host_value - count + 1;
  }
  Status SignalHost(uint64_t value) override {
    log.push_back(fmt::format("signal {}", value));
    return Status::Ok();
  }
  Status Wait(uint64_t value) override {
    log.push_back(fmt::format("wait {}", value));
    completed = std::max(completed, value);
    return Status::Ok();
  }
  Result<uint64_t> Completed() override { return completed; }
  uint64_t AttendScratchBytes(const AttentionArgs& args) const override {
    return args.n_tokens == 1 ? 0 : 1U << 30;
  }

  DeviceLog log;
  GivenToList given;
  uint64_t last_value = 0;
  uint64_t completed = 0;
  uint64_t last_host_value = 0;
};

}  // namespace kvrun::testing
