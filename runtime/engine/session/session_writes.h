// What a session writes to flash: how much a prompt and its answer will be, and whether the day has room for
// it (the option write-limit).
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "platform/base/status.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/model/model_config.h"
#include "runtime/store/write_meter.h"

namespace kvrun {

struct PromptToWrite {
  uint32_t begin = 0;  // positions of its tokens
  uint32_t end = 0;
  uint32_t n_answer = 0;  // tokens that follow it
};

struct WriteShape {
  uint32_t block_bytes = 1;  // of the files of records: what they are padded to
  bool is_kept = false;      // its state is saved when the prompt is read, and after the answer
};

// About what they write: records, what a prompt puts aside, rows of an index, saves.
uint64_t EstimateWrites(const KvPlan& plan, const ModelConfig& config, const WriteShape& shape,
                        const PromptToWrite& prompt);

class SessionWrites {
 public:
  struct Options {
    std::shared_ptr<WriteMeter> meter;
    std::optional<uint64_t> limit_bytes;  // a day
    uint32_t answer_tokens = 0;           // of the longest answer; no more than the context has room for
    bool is_kept = false;
  };
  // The config must outlive it.
  SessionWrites(Options options, const ModelConfig& config, KvPlan plan)
      : options_(std::move(options)), config_(config), plan_(std::move(plan)) {}

  bool is_limited() const { return options_.limit_bytes.has_value(); }
  // kInvalidArgument: today has no room for it; the message says what would fit. Errors of the file in which
  // all processes count. Ok without a limit. block_bytes: as WriteShape's.
  Status CheckPrompt(uint32_t begin, uint32_t n_tokens, uint32_t block_bytes) const;
  // What was written since the session was made.
  uint64_t bytes() const { return options_.meter->bytes(); }
  WriteMeter& meter() { return *options_.meter; }

 private:
  PromptToWrite PromptOf(uint32_t begin, uint32_t n_tokens) const;
  std::string WhatFits(uint32_t begin, uint32_t n_tokens, const WriteShape& shape, uint64_t left_bytes) const;

  const Options options_;
  const ModelConfig& config_;
  const KvPlan plan_;
};

}  // namespace kvrun
