// Independent sequences and their KV: fed with tokens, continued by generation.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/pass/step_runner.h"
#include "runtime/engine/session/session_writes.h"
#include "runtime/engine/text/logprobs.h"
#include "runtime/engine/text/sampler.h"
#include "runtime/model/tokenizer.h"

namespace kvrun {

inline constexpr uint32_t kMaxSequences = 16;
// 1..kMaxSequences.
Status CheckSequenceCount(uint32_t n_sequences);

// Answers true to cancel. The same amount may be told several times.
using ProgressCallback = std::function<bool(uint64_t done, uint64_t total)>;
// Logits [rows, n_vocab] of consecutive positions from `position` on; answers true to cancel.
using LogitsCallback = std::function<bool(uint32_t position, uint32_t rows, const float* logits)>;

struct GeneratedToken {
  uint32_t sequence = 0;
  TokenId id = 0;         // -1: only text that was held back
  std::string_view text;  // whole characters, possibly none; valid during the call
  // The likeliest, and as the last `id` itself; empty unless asked for. Valid during the call.
  std::span<const TokenLogprob> logprobs = {};
};
using TokenCallback = std::function<bool(const GeneratedToken&)>;  // answers true to cancel

struct GenerateOptions {
  uint32_t max_tokens = 0;  // per sequence; 0: until the context is full
  SamplerOptions sampler;
  std::vector<std::string> stops;
  bool ignore_end = false;
  uint32_t repeat_limit = 0;  // an answer ends that has written the same so many times in a row; 0: none does
  uint32_t n_logprobs = 0;    // the likeliest of each step that are handed out; at most kMaxLogprobs
  bool draws_by_seed_alone = false;  // else which sequence it is counts, too
};

// What a session refuses, for who wants to know it before there is one. `has_words`: it has a tokenizer.
Status CheckTokenIds(std::span<const TokenId> ids, uint32_t n_vocab);
Status CheckGenerateOptions(const GenerateOptions& options, uint32_t n_vocab, bool has_words);

enum class Finish : uint8_t { kLength, kEnd, kStop, kContextFull, kCancelled, kRepeats };

struct GenerateResult {
  uint32_t n_tokens = 0;  // the end-of-generation token excluded
  Finish finish = Finish::kCancelled;
};

// The caller's callbacks are not part of any time but of ttft_ms.
struct SessionStats {
  uint64_t prefill_tokens = 0;
  double prefill_ms = 0.0;
  uint64_t answer_tokens = 0;  // generated, without those that end an answer
  uint64_t decode_tokens =
      0;                   // computed by decode steps: the first token of an answer comes from the prefill
  double decode_ms = 0.0;  // steps and sampling
  double ttft_ms = 0.0;    // from the first feed (or generation) to the first token
  uint64_t cached_tokens = 0;      // that sequences had when a turn fed them
  uint64_t recomputed_tokens = 0;  // ForwardPass::recomputed_tokens: no part of the numbers above

  // What was counted since `earlier`, with the latter's ttft_ms.
  SessionStats Since(const SessionStats& earlier) const;
};

// One sequence: what is in it, and how far the device has computed it. At most one token, the last generated,
// is not computed yet.
struct SequenceState {
  std::vector<TokenId> tokens;
  uint32_t n_computed = 0;
  uint32_t n_fed = 0;  // up to the end of the last feed; what follows was generated
  // The logits of the last token, where it was fed and nothing has been sampled from them.
  bool has_logits = false;
  std::vector<float> logits;

  bool has_pending_token() const { return tokens.size() > n_computed; }
  size_t n_generated() const { return tokens.size() - std::min<size_t>(n_fed, tokens.size()); }
};

class Generation;
class Session;

// Where a session is kept.
class KeptState {
 public:
  virtual ~KeptState() = default;
  virtual Status Save(Session& session) = 0;
  // False: it is only read there, and what follows is kept nowhere.
  virtual bool saves() const = 0;
};

// How many tokens a sequence of a saved session has; 0 where that is not known.
uint64_t CountSavedTokens(const StateFile& state, uint32_t sequence);
Result<std::vector<TokenId>> ReadSavedTokens(const StateFile& state, uint32_t sequence);

// One thread at a time.
class Session {
 public:
  struct Parts {
    std::unique_ptr<ForwardPass> forward_pass;
    std::mutex* device_mutex = nullptr;    // shared by the sessions of a device
    const Tokenizer* tokenizer = nullptr;  // null: no text, no end of generation
    uint32_t n_sequences = 1;              // 1..kMaxSequences
    uint32_t n_ctx = 0;
    ProgressCallback progress;  // of prefill, in tokens; may be empty
    std::vector<std::string> notes;
    std::vector<std::string> details;       // notes for experts
    std::unique_ptr<KeptState> kept;        // null: the session ends with its process
    std::unique_ptr<SessionWrites> writes;  // null: what is written is not counted
  };
  static Result<std::unique_ptr<Session>> Create(Parts parts);

  uint32_t n_ctx() const { return n_ctx_; }
  uint32_t n_vocab() const { return runner_.n_vocab(); }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<std::string>& details() const { return details_; }
  // Tokens whose KV is there; 0 for a sequence that is not in the session.
  uint32_t Length(uint32_t sequence) const;
  // Forgets positions from `length` on, the pending token included.
  Status Truncate(uint32_t sequence, uint32_t length);

  // As kvrun.h describes. A prompt (more than one id) that would break the limit of what is written is
  // refused before anything of it is computed. Of no ids: only computes the pending token, if there is one.
  Status Feed(uint32_t sequence, std::span<const TokenId> ids);
  Status FeedLogits(uint32_t sequence, std::span<const TokenId> ids, size_t last,
                    const LogitsCallback& callback);
  // results: empty or as long as sequences.
  Status Generate(std::span<const uint32_t> sequences, const GenerateOptions& options,
                  const TokenCallback& callback, std::span<GenerateResult> results) {
    return GenerateEach(sequences, std::span(&options, 1), callback, results);
  }
  // options: one for all, or one for each sequence.
  Status GenerateEach(std::span<const uint32_t> sequences, std::span<const GenerateOptions> options,
                      const TokenCallback& callback, std::span<GenerateResult> results);
  // The same, a token at a time. The options must outlive it; EndAnswer when it is done with.
  Result<std::unique_ptr<Generation>> BeginAnswer(std::span<const uint32_t> sequences,
                                                  std::span<const GenerateOptions> options,
                                                  const TokenCallback& callback);
  void EndAnswer();

  // The tokens of a sequence, the pending one included; none for one that is not in the session.
  std::span<const TokenId> Tokens(uint32_t sequence) const;

  // --- Of a session that is kept (Parts::kept).
  bool is_kept() const { return kept_ != nullptr && kept_->saves(); }
  // What there is now is on the disk: whatever happens, the next process finds it, or a later save point.
  // After an error the one before counts, and the session goes on.
  Status SavePoint();
  // Of the caller, kept with the session; at most kMostNoteBytes.
  static constexpr uint64_t kMostNoteBytes = 64 * 1024 * 1024;
  Status SetNote(std::string note);
  const std::string& note() const { return note_; }
  static Result<std::string> ReadNote(const StateFile& state);
  // All that the session is: saves, loads or counts its sequences and what is kept of them. Loading is into a
  // session that was made the same way and has computed nothing; after an error it may only be destroyed.
  // kCorrupt: what is loaded contradicts itself.
  Status VisitState(StateVisitor& visitor);

  // To flash, since it was made.
  uint64_t written_bytes() const { return writes_ != nullptr ? writes_->bytes() : 0; }

  SessionStats stats() const;
  // Of the last turn: feeds and the call of Generate after them. While a turn is being fed, of that one.
  SessionStats turn_stats() const;
  // Nothing where all KV stays in memory as it was computed.
  std::optional<KvReport> kv_report() const { return runner_.kv_report(); }
  // Of kv_report() too.
  void ResetStats();

 private:
  friend class Generation;
  using Clock = std::chrono::steady_clock;
  struct Chunk;
  // In tokens of the feed that is under way; total 0: there is none.
  struct FeedProgress {
    uint64_t total = 0;
    uint64_t before_chunk = 0;                        // done before the chunk that is being computed
    std::optional<uint64_t> reported = std::nullopt;  // the last
  };

  explicit Session(Parts parts);

  Status CheckSequence(uint32_t sequence) const;
  Status CheckFeed(uint32_t sequence, std::span<const TokenId> ids) const;
  Status CheckWrites(uint32_t sequence, size_t n_ids) const;
  // Now and then while something is computed; at the end of it; what was written is not lost with the
  // process.
  void NoteWrites(bool is_end);
  Status CheckSequences(std::span<const uint32_t> sequences) const;
  Status Append(uint32_t sequence, std::span<const TokenId> ids, size_t n_logits,
                const LogitsCallback* callback);
  Status ComputeChunks(uint32_t sequence, size_t n_logits, const LogitsCallback* callback);
  Status ComputeChunk(const Chunk& chunk, const LogitsCallback* callback);
  Status ComputeAndHandOut(const Chunk& chunk, const LogitsCallback& callback);
  void NoteComputed(const Chunk& chunk);
  bool ReportProgress(uint64_t done);
  bool AskProgress(uint64_t done);
  bool ReportRows(uint64_t rows_of_chunk);
  void NoteWorkBegins();
  void NoteToken();

  StepRunner runner_;
  const Tokenizer* tokenizer_;
  uint32_t n_ctx_;
  ProgressCallback progress_;
  FeedProgress feed_;
  std::vector<std::string> notes_;
  std::vector<std::string> details_;
  std::unique_ptr<KeptState> kept_;
  std::unique_ptr<SessionWrites> writes_;
  std::string note_;
  std::vector<SequenceState> sequences_;
  SessionStats stats_;              // without recomputed_tokens
  uint64_t recomputed_before_ = 0;  // when they were reset
  SessionStats turn_began_;         // with the turn's own ttft_ms
  bool turn_ended_ = true;
  std::vector<bool> is_fed_;  // of each sequence, in the turn
  // Since when the first token, and a turn's first one, is waited for.
  std::optional<Clock::time_point> work_began_;
  std::optional<Clock::time_point> turn_work_began_;
  bool has_ttft_ = false;
  ForwardStep step_;
  std::vector<uint32_t> outputs_;
  std::vector<float> logits_;
};

}  // namespace kvrun
