#include "runtime/engine/session/session_writes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "platform/base/units.h"
#include "runtime/store/written_days.h"

namespace kvrun {
namespace {

// "5 h 12 min".
std::string UntilTheDayEnds() {
  using std::chrono::minutes;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto of_day = std::chrono::duration_cast<minutes>(now).count() % (24 * 60);
  const auto left = 24 * 60 - of_day;
  return fmt::format("{} h {} min", left / 60, left % 60);
}

// The same with K and V of 8 bits.
KvPlan InEightBits(KvPlan plan) {
  for (KvRecordShape* record : {&plan.record, &plan.slots.record})
    record->k_type = record->v_type = KvType::kInt8;
  return plan;
}

}  // namespace

PromptToWrite SessionWrites::PromptOf(uint32_t begin, uint32_t n_tokens) const {
  const uint32_t end = begin + n_tokens;
  return {begin, end, std::min(options_.answer_tokens, plan_.n_ctx - std::min(plan_.n_ctx, end))};
}

// Ways to stay below the limit today, each with what it would write.
std::string SessionWrites::WhatFits(uint32_t begin, uint32_t n_tokens, const WriteShape& shape,
                                    uint64_t left_bytes) const {
  const auto bytes_of = [&](uint32_t n) { return EstimateWrites(plan_, config_, shape, PromptOf(begin, n)); };
  uint32_t fits = 0;
  for (uint32_t least = 1, most = n_tokens; least < most;) {
    const uint32_t middle = least + (most - least) / 2;
    const bool is_enough = bytes_of(middle) <= left_bytes;
    if (is_enough) fits = middle;
    (is_enough ? least : most) = is_enough ? middle + 1 : middle;
  }
  std::vector<std::string> ways;
  if (fits > 0) ways.push_back(Counted(fits, "token"));
  const PromptToWrite prompt = PromptOf(begin, n_tokens);
  const uint64_t in_eight_bits = EstimateWrites(InEightBits(plan_), config_, shape, prompt);
  const bool is_on_flash = EstimateWrites(plan_, config_, {shape.block_bytes, /*is_kept=*/false}, prompt) > 0;
  if (is_on_flash && in_eight_bits <= left_bytes) {
    ways.push_back(fmt::format("all of it with --kv-type int8 ({})", FormatBytes(in_eight_bits)));
  }
  if (is_on_flash && !options_.is_kept) {
    ways.push_back(
        fmt::format("all of it with --kv-method full (nothing is written, and {} of memory are taken)",
                    FormatBytes(plan_.budget.full_bytes)));
  }
  if (options_.is_kept && !is_on_flash) ways.push_back("all of it without --session (nothing is written)");
  std::string text;
  for (const std::string& way : ways) text += fmt::format("{}{}", text.empty() ? "" : ", or ", way);
  return text.empty() ? "nothing of it" : text;
}

Status SessionWrites::CheckPrompt(uint32_t begin, uint32_t n_tokens, uint32_t block_bytes) const {
  if (!options_.limit_bytes) return Status::Ok();
  const WriteShape shape{.block_bytes = block_bytes, .is_kept = options_.is_kept};
  const PromptToWrite prompt = PromptOf(begin, n_tokens);
  const uint64_t bytes = EstimateWrites(plan_, config_, shape, prompt);
  if (bytes == 0) return Status::Ok();
  const std::string& path = options_.meter->path();
  if (path.empty()) {
    return {
        StatusCode::kInvalidArgument,
        "nothing says how much was written today, as neither XDG_STATE_HOME nor HOME is an absolute path: "
        "set one of them, or leave out --kv-write-limit"};
  }
  KVRUN_RETURN_IF_ERROR(options_.meter->Flush());
  const uint32_t today = Today();
  KVRUN_RETURN_IF_ERROR(AddWritten(path, today, 0));  // that what is written can be counted
  KVRUN_ASSIGN_OR_RETURN(const WrittenDays written, ReadWritten(path));
  const uint64_t limit = *options_.limit_bytes;
  const uint64_t before = written.BytesOf(today);
  const uint64_t left = limit - std::min(limit, before);
  if (bytes <= left) return Status::Ok();
  return {
      StatusCode::kInvalidArgument,
      fmt::format(
          "the prompt is not read, as it would break the limit of what is written to flash in a day ({} of "
          "--kv-write-limit): {} were written today, and {} with an answer of {} would write about {}; what "
          "would fit: {}; the day ends in {} (00:00 UTC); a higher --kv-write-limit, or none, lifts the "
          "limit",
          FormatBytes(limit), FormatBytes(before), Counted(n_tokens, "token"), prompt.n_answer,
          FormatBytes(bytes), WhatFits(begin, n_tokens, shape, left), UntilTheDayEnds())};
}

}  // namespace kvrun
