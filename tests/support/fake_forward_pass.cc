#include "tests/support/fake_forward_pass.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "runtime/store/state_visitor.h"

namespace kvrun::testing {
namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDU;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53U;
  return x ^ (x >> 33);
}

uint64_t Extend(uint64_t hash, TokenId id) {
  return Mix(hash + static_cast<uint64_t>(id) + 0x9E3779B97F4A7C15U) | 1U;
}

void WriteRow(uint64_t hash, std::span<float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(Mix(hash + i) >> 40) / static_cast<float>(1U << 24) * 8.0F - 4.0F;
  }
}

}  // namespace

FakeForwardPass::FakeForwardPass(FakePassOptions options)
    : options_(std::move(options)), kv_(size_t{options_.n_sequences} * options_.n_ctx, 0) {}

std::vector<float> FakeForwardPass::LogitsAfter(std::span<const TokenId> tokens, uint32_t n_vocab) {
  uint64_t hash = 0;
  for (const TokenId id : tokens) hash = Extend(hash, id);
  std::vector<float> logits(n_vocab);
  WriteRow(hash, logits);
  return logits;
}

Status FakeForwardPass::VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) {
  if (!options_.keeps || lengths.size() != 1) return {StatusCode::kUnsupported, "the fake keeps nothing"};
  std::vector<uint64_t> kept(kv_.begin(), kv_.begin() + lengths[0]);
  KVRUN_RETURN_IF_ERROR(visitor.Vector({StatePart::kResidentKv, 0}, &kept, options_.n_ctx));
  if (visitor.is_loading()) std::copy(kept.begin(), kept.end(), kv_.begin());
  return Status::Ok();
}

// What the interface's contract forbids.
std::string FakeForwardPass::FindMisuse(const ForwardStep& step) const {
  const std::span<const StepRow> rows = step.rows();
  if (rows.empty() || rows.size() > options_.max_rows) return "number of rows";
  std::set<uint32_t> sequences;
  for (size_t i = 0; i < rows.size(); ++i) {
    const StepRow& row = rows[i];
    if (row.sequence >= options_.n_sequences || row.position >= options_.n_ctx) return "row out of range";
    if (row.id < 0 || static_cast<uint32_t>(row.id) >= options_.n_vocab) return "id out of range";
    const bool follows =
        i > 0 && row.sequence == rows[i - 1].sequence && row.position == rows[i - 1].position + 1;
    const size_t place = size_t{row.sequence} * options_.n_ctx + row.position;
    if (row.position > 0 && !follows && kv_[place - 1] == 0) return "an earlier entry is missing";
  }
  for (const KvSpan& span : step.kv().spans) {
    if (!sequences.insert(span.sequence).second) return "two spans of a sequence";
    if (span.kind == SpanKind::kDecode && span.n_rows > 1)
      return "generated tokens of a sequence in one step";
  }
  return "";
}

Status FakeForwardPass::Run(const ForwardStep& step, std::span<const uint32_t> outputs,
                            std::span<float> logits) {
  FakePassLog* log = options_.log;
  const int run = log == nullptr ? 0 : static_cast<int>(log->n_runs++);
  if (log != nullptr && log->fail_at_run == run) return Status(StatusCode::kDevice, "the fake device failed");
  if (log != nullptr && log->n_running++ > 0) ++log->n_overlaps;
  Status status;
  if (const std::string misuse = FindMisuse(step); !misuse.empty()) {
    status = Status(StatusCode::kInternal, "forward pass misused: " + misuse);
  } else {
    status = ComputeRows(step.rows());
    if (status.ok()) status = WriteLogits(outputs, logits);
    if (log != nullptr && log->nan_at_run == run) logits[3] = std::numeric_limits<float>::quiet_NaN();
  }
  if (log != nullptr) --log->n_running;
  return status;
}

Status FakeForwardPass::ComputeRows(std::span<const StepRow> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (options_.progress_rows != 0 && progress_ && i % options_.progress_rows == 0 &&
        progress_(i, rows.size())) {
      return Status(StatusCode::kCancelled, "the fake run was cancelled");
    }
    const size_t place = size_t{rows[i].sequence} * options_.n_ctx + rows[i].position;
    kv_[place] = Extend(rows[i].position == 0 ? 0 : kv_[place - 1], rows[i].id);
  }
  last_rows_.assign(rows.begin(), rows.end());
  return Status::Ok();
}

void FakeForwardPass::ResetKvReport() {
  if (!options_.kv_report) return;
  options_.kv_report->stats = {};
  options_.kv_report->store = {};
}

Status FakeForwardPass::MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) {
  return WriteLogits(outputs, logits);
}

Status FakeForwardPass::WriteLogits(std::span<const uint32_t> outputs, std::span<float> logits) {
  if (outputs.size() > options_.max_output_rows || logits.size() != outputs.size() * options_.n_vocab) {
    return Status(StatusCode::kInternal, "forward pass misused: number of outputs");
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] >= last_rows_.size()) return Status(StatusCode::kInternal, "misused: output row");
    const StepRow& row = last_rows_[outputs[i]];
    const auto out = logits.subspan(i * options_.n_vocab, options_.n_vocab);
    WriteRow(kv_[size_t{row.sequence} * options_.n_ctx + row.position], out);
    const TokenId next = options_.script ? options_.script(row.sequence, row.position) : -1;
    if (next >= 0) out[static_cast<size_t>(next)] = 100.0F;
  }
  return Status::Ok();
}

}  // namespace kvrun::testing
