#include "runtime/engine/session/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/engine/session/generation.h"
#include "runtime/engine/text/utf8.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

Status CheckTokenIds(std::span<const TokenId> ids, uint32_t n_vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && static_cast<uint32_t>(ids[i]) < n_vocab) continue;
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("token id {} (number {} of {}) is not in the vocabulary of {} tokens: were the ids "
                    "made with another model?",
                    ids[i], i + 1, ids.size(), n_vocab));
  }
  return Status::Ok();
}

Status CheckGenerateOptions(const GenerateOptions& options, uint32_t n_vocab, bool has_words) {
  for (const std::string& stop : options.stops) {
    if (stop.empty() || !IsValidUtf8(stop)) {
      return Status(StatusCode::kInvalidArgument, "a stop string is empty or not valid UTF-8");
    }
  }
  if (!options.stops.empty() && !has_words) {
    return Status(StatusCode::kUnsupported, "stop strings need a vocabulary, which the model's file lacks");
  }
  if (options.n_logprobs > kMaxLogprobs) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the {} likeliest tokens of each step were asked for; there can be 0 to {}",
                        options.n_logprobs, kMaxLogprobs)};
  }
  for (const LogitBias& one : options.sampler.logit_bias) {
    if (one.id >= 0 && static_cast<uint32_t>(one.id) < n_vocab) continue;
    return {StatusCode::kInvalidArgument,
            fmt::format("logit_bias names the token {}, which is not in the vocabulary of {} tokens", one.id,
                        n_vocab)};
  }
  return CheckSamplerOptions(options.sampler);
}

// Positions [begin, end) of a sequence, computed in one step.
struct Session::Chunk {
  uint32_t sequence;
  uint32_t begin;
  uint32_t end;
  size_t first_logits;  // the first position whose logits are asked for
  bool is_prompt;       // of more than one token: a token alone is what a caller that samples by itself feeds
  bool is_last;
};

Status CheckSequenceCount(uint32_t n_sequences) {
  if (n_sequences != 0 && n_sequences <= kMaxSequences) return Status::Ok();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("a session of {} sequences was asked for; it can have 1 to {}", n_sequences,
                            kMaxSequences));
}

Result<std::unique_ptr<Session>> Session::Create(Parts parts) {
  KVRUN_RETURN_IF_ERROR(CheckSequenceCount(parts.n_sequences));
  if (parts.forward_pass->max_rows() < parts.n_sequences || parts.forward_pass->max_output_rows() == 0) {
    return Status(StatusCode::kInternal, "the forward pass takes fewer rows than the session has sequences");
  }
  return std::unique_ptr<Session>(new Session(std::move(parts)));
}

Session::Session(Parts parts)
    : runner_(std::move(parts.forward_pass), parts.device_mutex),
      tokenizer_(parts.tokenizer),
      n_ctx_(parts.n_ctx),
      progress_(std::move(parts.progress)),
      notes_(std::move(parts.notes)),
      details_(std::move(parts.details)),
      kept_(std::move(parts.kept)),
      writes_(std::move(parts.writes)),
      sequences_(parts.n_sequences) {
  is_fed_.resize(sequences_.size());
  for (SequenceState& state : sequences_) state.tokens.reserve(n_ctx_);
  if (progress_ || writes_ != nullptr)
    runner_.SetProgress([this](uint64_t rows, uint64_t) { return ReportRows(rows); });
}

namespace {

// Takes back what an append could not finish: on every way out, no more than the pending token that was there
// before is left uncomputed.
class ForgetUnfinished {
 public:
  explicit ForgetUnfinished(SequenceState* state)
      : state_(state), size_before_(state->tokens.size()), n_fed_before_(state->n_fed) {}
  ForgetUnfinished(const ForgetUnfinished&) = delete;
  ForgetUnfinished& operator=(const ForgetUnfinished&) = delete;
  ~ForgetUnfinished() {
    state_->tokens.resize(std::max<size_t>(state_->n_computed, size_before_));
    const auto size = static_cast<uint32_t>(state_->tokens.size());
    if (state_->n_fed > size) state_->n_fed = size == size_before_ ? n_fed_before_ : size;
  }

 private:
  SequenceState* state_;
  size_t size_before_;
  uint32_t n_fed_before_;
};

}  // namespace

uint32_t Session::Length(uint32_t sequence) const {
  return sequence < sequences_.size() ? sequences_[sequence].n_computed : 0;
}

namespace {

enum Item : uint16_t { kTokens, kComputed, kFed, kLogits, kNote };

Status VisitNote(StateVisitor& visitor, std::string* note) {
  std::vector<uint8_t> bytes(note->begin(), note->end());
  KVRUN_RETURN_IF_ERROR(visitor.Vector({StatePart::kSequence, kNote}, &bytes, Session::kMostNoteBytes));
  note->assign(bytes.begin(), bytes.end());
  return Status::Ok();
}

Status VisitSequence(StateVisitor& visitor, uint32_t nth, uint32_t n_ctx, uint32_t n_vocab,
                     SequenceState* state) {
  const auto key = [nth](Item item) { return StateKey{StatePart::kSequence, item, 0, nth}; };
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kTokens), &state->tokens, n_ctx));
  KVRUN_RETURN_IF_ERROR(visitor.Value(key(kComputed), &state->n_computed));
  KVRUN_RETURN_IF_ERROR(visitor.Value(key(kFed), &state->n_fed));
  std::vector<float> logits = state->has_logits ? state->logits : std::vector<float>();
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kLogits), &logits, n_vocab));
  if (!visitor.is_loading()) return Status::Ok();
  state->has_logits = !logits.empty();
  state->logits = std::move(logits);
  const size_t n = state->tokens.size();
  const bool is_whole = state->n_computed <= n && n - state->n_computed <= 1 && state->n_fed <= n &&
                        (!state->has_logits || (state->logits.size() == n_vocab && state->n_computed == n));
  const bool are_ids = std::all_of(state->tokens.begin(), state->tokens.end(), [n_vocab](TokenId id) {
    return id >= 0 && static_cast<uint32_t>(id) < n_vocab;
  });
  if (is_whole && are_ids) return Status::Ok();
  return {StatusCode::kCorrupt, fmt::format("what was saved of sequence {} contradicts itself", nth)};
}

}  // namespace

uint64_t CountSavedTokens(const StateFile& state, uint32_t sequence) {
  return state.SizeOf({StatePart::kSequence, kTokens, 0, sequence}).value_or(0) / sizeof(TokenId);
}

Result<std::string> Session::ReadNote(const StateFile& state) {
  StateLoader loader(state);
  std::string note;
  KVRUN_RETURN_IF_ERROR(VisitNote(loader, &note));
  return note;
}

Result<std::vector<TokenId>> ReadSavedTokens(const StateFile& state, uint32_t sequence) {
  StateLoader loader(state);
  std::vector<TokenId> tokens;
  KVRUN_RETURN_IF_ERROR(loader.Vector({StatePart::kSequence, kTokens, 0, sequence}, &tokens,
                                      std::numeric_limits<uint32_t>::max()));
  return tokens;
}

Status Session::VisitState(StateVisitor& visitor) {
  KVRUN_RETURN_IF_ERROR(VisitNote(visitor, &note_));
  std::vector<uint32_t> lengths(sequences_.size());
  for (uint32_t i = 0; i < sequences_.size(); ++i) {
    KVRUN_RETURN_IF_ERROR(VisitSequence(visitor, i, n_ctx_, n_vocab(), &sequences_[i]));
    lengths[i] = sequences_[i].n_computed;
  }
  return runner_.VisitState(visitor, lengths);
}

std::span<const TokenId> Session::Tokens(uint32_t sequence) const {
  if (sequence >= sequences_.size()) return {};
  return sequences_[sequence].tokens;
}

Status Session::SavePoint() {
  if (kept_ != nullptr) {
    const Status saved = kept_->Save(*this);
    NoteWrites(/*is_end=*/true);
    return saved;
  }
  return {StatusCode::kInvalidArgument, "the session has no file to be kept in: it was made without one"};
}

Status Session::SetNote(std::string note) {
  if (note.size() > kMostNoteBytes) {
    return {StatusCode::kInvalidArgument, fmt::format("a note of {} is too long to be kept: {} are possible",
                                                      FormatBytes(note.size()), FormatBytes(kMostNoteBytes))};
  }
  note_ = std::move(note);
  return Status::Ok();
}

Status Session::CheckSequence(uint32_t sequence) const {
  if (sequence < sequences_.size()) return Status::Ok();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("there is no sequence {}: the session has {}, counted from 0", sequence,
                            sequences_.size()));
}

Status Session::Truncate(uint32_t sequence, uint32_t length) {
  KVRUN_RETURN_IF_ERROR(CheckSequence(sequence));
  SequenceState& state = sequences_[sequence];
  if (length > state.n_computed && length != state.tokens.size()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("cannot truncate sequence {} to {} tokens: it has {}", sequence, length,
                              state.n_computed));
  }
  if (length < state.tokens.size()) {
    state.tokens.resize(length);
    state.n_computed = length;
    state.n_fed = std::min(state.n_fed, length);
    state.has_logits = false;
    runner_.Cut(sequence, length);
  }
  return Status::Ok();
}

Status Session::CheckFeed(uint32_t sequence, std::span<const TokenId> ids) const {
  KVRUN_RETURN_IF_ERROR(CheckSequence(sequence));
  const size_t n_there = sequences_[sequence].tokens.size();
  if (ids.size() > n_ctx_ - n_there) {
    return Status(
        StatusCode::kContextFull,
        fmt::format(
            "the context has no room for {}: it holds {} tokens, and {} of them are taken; shorten the "
            "text or ask for a larger context (--ctx {})",
            Counted(ids.size(), "more token"), n_ctx_, n_there, n_there + ids.size()));
  }
  return CheckTokenIds(ids, n_vocab());
}

Status Session::Feed(uint32_t sequence, std::span<const TokenId> ids) {
  return Append(sequence, ids, 0, nullptr);
}

Status Session::FeedLogits(uint32_t sequence, std::span<const TokenId> ids, size_t last,
                           const LogitsCallback& callback) {
  return Append(sequence, ids, last == 0 ? ids.size() : std::min(last, ids.size()), &callback);
}

// A token alone is mostly one of an answer that has begun.
Status Session::CheckWrites(uint32_t sequence, size_t n_ids) const {
  if (writes_ == nullptr || !writes_->is_limited() || n_ids <= 1) return Status::Ok();
  const std::optional<KvReport> report = kv_report();
  const uint32_t block_bytes = report && report->io ? report->io->alignment_bytes : 1;
  return writes_->CheckPrompt(static_cast<uint32_t>(sequences_[sequence].tokens.size()),
                              static_cast<uint32_t>(n_ids), block_bytes);
}

void Session::NoteWrites(bool is_end) {
  if (writes_ == nullptr) return;
  // What cannot be counted now is counted later.
  if (is_end) {
    (void)writes_->meter().Flush();
  } else {
    writes_->meter().FlushIfMuch();
  }
}

Status Session::Append(uint32_t sequence, std::span<const TokenId> ids, size_t n_logits,
                       const LogitsCallback* callback) {
  KVRUN_RETURN_IF_ERROR(CheckFeed(sequence, ids));
  KVRUN_RETURN_IF_ERROR(CheckWrites(sequence, ids.size()));
  SequenceState& state = sequences_[sequence];
  const ForgetUnfinished forget_unfinished(&state);
  state.tokens.insert(state.tokens.end(), ids.begin(), ids.end());
  if (!ids.empty()) state.n_fed = static_cast<uint32_t>(state.tokens.size());
  if (state.tokens.size() == state.n_computed) return Status::Ok();
  NoteWorkBegins();
  const uint32_t n_before = state.n_computed;
  const bool is_first = !ids.empty() && !is_fed_[sequence];
  if (is_first) stats_.cached_tokens += n_before;
  is_fed_[sequence] = true;
  feed_ = {.total = state.tokens.size() - n_before};
  Status status = ComputeChunks(sequence, n_logits, callback);
  if (!status.ok() && is_first && state.n_computed <= n_before) {  // what was there may be of no use
    stats_.cached_tokens -= n_before;
    is_fed_[sequence] = false;
  }
  feed_ = {};
  NoteWrites(/*is_end=*/ids.size() > 1);
  return status;
}

// All tokens of a sequence that are not computed yet.
Status Session::ComputeChunks(uint32_t sequence, size_t n_logits, const LogitsCallback* callback) {
  const SequenceState& state = sequences_[sequence];
  const uint32_t begin = state.n_computed;
  const auto size = static_cast<uint32_t>(state.tokens.size());
  while (true) {
    feed_.before_chunk = state.n_computed - begin;
    if (ReportProgress(feed_.before_chunk)) {
      return Status(StatusCode::kCancelled, fmt::format("cancelled after {} of {} tokens of the prompt",
                                                        feed_.before_chunk, feed_.total));
    }
    if (state.n_computed == size) return Status::Ok();
    const uint32_t end = state.n_computed + std::min(size - state.n_computed, runner_.max_rows());
    KVRUN_RETURN_IF_ERROR(ComputeChunk(
        {sequence, state.n_computed, end, size - n_logits, size - begin > 1, end == size}, callback));
  }
}

// Where a chunk begins, two may count: once is enough.
bool Session::ReportProgress(uint64_t done) {
  if (!progress_ || (feed_.reported && done <= *feed_.reported)) return false;
  return AskProgress(done);
}

bool Session::AskProgress(uint64_t done) {
  feed_.reported = std::max(done, feed_.reported.value_or(0));
  return progress_(*feed_.reported, feed_.total);
}

// While the forward pass runs: the callback's time is not the prefill's.
bool Session::ReportRows(uint64_t rows_of_chunk) {
  NoteWrites(/*is_end=*/false);
  if (feed_.total == 0) return false;  // of a generation
  double callback_ms = 0.0;
  bool is_cancelled = false;
  {
    const AddElapsed timer(&callback_ms);
    const uint64_t done = feed_.before_chunk + rows_of_chunk;
    // Also where nothing is new to tell: others may go first, and who asked may have gone away.
    is_cancelled = rows_of_chunk > 0 && progress_ ? AskProgress(done) : ReportProgress(done);
  }
  stats_.prefill_ms -= callback_ms;
  return is_cancelled;
}

Status Session::ComputeChunk(const Chunk& chunk, const LogitsCallback* callback) {
  SequenceState& state = sequences_[chunk.sequence];
  step_.Clear();
  step_.Add(chunk.is_prompt ? SpanKind::kPrompt : SpanKind::kDecode,
            std::span(state.tokens).subspan(chunk.begin, chunk.end - chunk.begin), chunk.begin,
            chunk.sequence);
  state.has_logits = false;
  if (chunk.is_last) state.logits.resize(n_vocab());
  if (chunk.end > chunk.first_logits) return ComputeAndHandOut(chunk, *callback);
  const uint32_t last_row = chunk.end - chunk.begin - 1;
  {
    const AddElapsed timer(&stats_.prefill_ms);
    if (chunk.is_last) {
      KVRUN_RETURN_IF_ERROR(runner_.Run(step_, {&last_row, 1}, state.logits));
    } else {
      KVRUN_RETURN_IF_ERROR(runner_.Run(step_, {}, {}));
    }
  }
  NoteComputed(chunk);
  return Status::Ok();
}

// Computes a chunk with the logits that are asked for, and hands them out as they come.
Status Session::ComputeAndHandOut(const Chunk& chunk, const LogitsCallback& callback) {
  SequenceState& state = sequences_[chunk.sequence];
  outputs_.clear();
  for (auto i = static_cast<uint32_t>(std::max<size_t>(chunk.begin, chunk.first_logits)); i < chunk.end;
       ++i) {
    outputs_.push_back(i - chunk.begin);
  }
  logits_.resize(std::min<size_t>(outputs_.size(), runner_.max_output_rows()) * n_vocab());
  for (size_t done = 0; done < outputs_.size();) {
    const size_t n = std::min<size_t>(outputs_.size() - done, runner_.max_output_rows());
    const auto outputs = std::span<const uint32_t>(outputs_).subspan(done, n);
    const auto logits = std::span<float>(logits_).first(n * n_vocab());
    {
      const AddElapsed timer(&stats_.prefill_ms);
      KVRUN_RETURN_IF_ERROR(done == 0 ? runner_.Run(step_, outputs, logits)
                                      : runner_.MoreLogits(outputs, logits));
    }
    done += n;
    const bool is_end = chunk.is_last && done == outputs_.size();
    if (is_end) std::copy(logits.end() - n_vocab(), logits.end(), state.logits.begin());
    if (done == n) NoteComputed(chunk);
    state.has_logits = is_end;
    if (callback(chunk.begin + outputs.front(), static_cast<uint32_t>(n), logits.data())) {
      return Status(StatusCode::kCancelled, "cancelled while logits were handed out");
    }
  }
  return Status::Ok();
}

void Session::NoteComputed(const Chunk& chunk) {
  SequenceState& state = sequences_[chunk.sequence];
  state.n_computed = chunk.end;
  state.has_logits = chunk.is_last;
  stats_.prefill_tokens += chunk.end - chunk.begin;
}

Status Session::CheckSequences(std::span<const uint32_t> sequences) const {
  if (sequences.empty()) return Status(StatusCode::kInvalidArgument, "no sequence to generate for was named");
  uint32_t seen = 0;
  for (const uint32_t sequence : sequences) {
    KVRUN_RETURN_IF_ERROR(CheckSequence(sequence));
    if ((seen >> sequence & 1U) != 0) {
      return Status(StatusCode::kInvalidArgument, fmt::format("sequence {} is named twice", sequence));
    }
    seen |= 1U << sequence;
    if (sequences_[sequence].tokens.empty()) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("sequence {} is empty: there is nothing to continue; feed at least one token "
                                "(an empty prompt can begin with the begin-of-sequence token)",
                                sequence));
    }
  }
  return Status::Ok();
}

Result<std::unique_ptr<Generation>> Session::BeginAnswer(std::span<const uint32_t> sequences,
                                                         std::span<const GenerateOptions> options,
                                                         const TokenCallback& callback) {
  KVRUN_CHECK(options.size() == 1 || options.size() == sequences.size());
  KVRUN_RETURN_IF_ERROR(CheckSequences(sequences));
  for (const GenerateOptions& each : options) {
    KVRUN_RETURN_IF_ERROR(CheckGenerateOptions(each, n_vocab(), tokenizer_ != nullptr));
  }
  NoteWorkBegins();
  return std::make_unique<Generation>(this, sequences, options, callback);
}

void Session::EndAnswer() {
  NoteWrites(/*is_end=*/true);
  turn_ended_ = true;
}

Status Session::GenerateEach(std::span<const uint32_t> sequences, std::span<const GenerateOptions> options,
                             const TokenCallback& callback, std::span<GenerateResult> results) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Generation> answer, BeginAnswer(sequences, options, callback));
  const Status status = answer->Run();
  answer->WriteResults(results);
  EndAnswer();
  return status;
}

SessionStats SessionStats::Since(const SessionStats& earlier) const {
  return {.prefill_tokens = prefill_tokens - earlier.prefill_tokens,
          .prefill_ms = prefill_ms - earlier.prefill_ms,
          .answer_tokens = answer_tokens - earlier.answer_tokens,
          .decode_tokens = decode_tokens - earlier.decode_tokens,
          .decode_ms = decode_ms - earlier.decode_ms,
          .ttft_ms = earlier.ttft_ms,
          .cached_tokens = cached_tokens - earlier.cached_tokens,
          .recomputed_tokens = recomputed_tokens - earlier.recomputed_tokens};
}

SessionStats Session::stats() const {
  SessionStats stats = stats_;
  stats.recomputed_tokens = runner_.recomputed_tokens() - recomputed_before_;
  return stats;
}

SessionStats Session::turn_stats() const { return stats().Since(turn_began_); }

void Session::ResetStats() {
  stats_ = {};
  recomputed_before_ = runner_.recomputed_tokens();
  turn_began_ = {};
  turn_ended_ = true;
  turn_work_began_.reset();
  work_began_.reset();
  has_ttft_ = false;
  runner_.ResetKvReport();
}

void Session::NoteWorkBegins() {
  const Clock::time_point now = Clock::now();
  if (!work_began_) work_began_ = now;
  if (!turn_ended_) return;
  turn_ended_ = false;
  is_fed_.assign(sequences_.size(), false);
  turn_began_ = stats();
  turn_began_.ttft_ms = 0.0;
  turn_work_began_ = now;
}

void Session::NoteToken() {
  const auto milliseconds_since = [now = Clock::now()](Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(now - begin).count();
  };
  if (!has_ttft_) stats_.ttft_ms = milliseconds_since(*work_began_);
  has_ttft_ = true;
  if (turn_work_began_) turn_began_.ttft_ms = milliseconds_since(*turn_work_began_);
  turn_work_began_.reset();
}

}  // namespace kvrun
