#include "runtime/engine/session/generation.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvrun {

Generation::Generation(Session* session, std::span<const uint32_t> sequences,
                       std::span<const GenerateOptions> options, TokenCallback callback)
    : session_(session), callback_(std::move(callback)), sampler_(options.front().sampler) {
  lanes_.reserve(sequences.size());
  bytes_.reserve(kUsualTextBytes);
  for (size_t i = 0; i < sequences.size(); ++i) {
    SequenceState& state = session->sequences_[sequences[i]];
    const GenerateOptions& own = options.size() == 1 ? options.front() : options[i];
    lanes_.push_back({sequences[i], &state, &own, TextStream(own.stops), RepeatWatch(own.repeat_limit)});
    lanes_.back().begins_text = BeginsText(state);
  }
}

// Generated text that continues a text keeps the space that its first word begins with.
bool Generation::BeginsText(const SequenceState& state) const {
  const Tokenizer* tokenizer = session_->tokenizer_;
  return tokenizer != nullptr && std::all_of(state.tokens.begin(), state.tokens.end(),
                                             [tokenizer](TokenId id) { return tokenizer->IsControl(id); });
}

Status Generation::Run() {
  while (!is_done()) KVRUN_RETURN_IF_ERROR(Step());
  return Status::Ok();
}

Status Generation::Step() {
  BeginStep();
  KVRUN_RETURN_IF_ERROR(Compute());
  return EndStep();
}

// One step for the active lanes, except those whose logits are there from their feed. A lane without a
// pending token (after a truncation, a cancel) computes its last token again.
void Generation::BeginStep() {
  ForwardStep& step = session_->step_;
  std::vector<uint32_t>& outputs = session_->outputs_;
  step.Clear();
  outputs.clear();
  DropFullLanes();
  if (is_done()) return;
  for (const Lane& lane : lanes_) {
    const SequenceState& state = *lane.state;
    if (!lane.is_active || state.has_logits) continue;
    const uint32_t position = state.has_pending_token() ? state.n_computed : state.n_computed - 1;
    outputs.push_back(static_cast<uint32_t>(step.size()));
    step.Add(SpanKind::kDecode, {state.tokens[position], position, lane.sequence});
  }
  session_->logits_.resize(step.size() * session_->n_vocab());
}

Status Generation::Compute() {
  const ForwardStep& step = session_->step_;
  if (step.empty()) return Status::Ok();
  const AddElapsed timer(&session_->stats_.decode_ms);
  KVRUN_RETURN_IF_ERROR(session_->runner_.RunAll(step, session_->outputs_, session_->logits_));
  session_->stats_.decode_tokens += step.size();
  return Status::Ok();
}

StepMember* Generation::member() const {
  return session_->step_.size() == 1 ? session_->runner_.step_member() : nullptr;
}

SharedStep::Row Generation::RowToCompute() {
  return {.member = member(), .row = session_->step_.rows()[0], .logits = session_->logits_};
}

void Generation::NoteComputed(std::chrono::steady_clock::duration share) {
  session_->stats_.decode_ms += std::chrono::duration<double, std::milli>(share).count();
  ++session_->stats_.decode_tokens;
}

Status Generation::EndStep() {
  if (is_done()) return Status::Ok();
  GiveOutLogits();
  KVRUN_RETURN_IF_ERROR(SampleLanes());
  session_->NoteWrites(/*is_end=*/false);
  return Status::Ok();
}

void Generation::WriteResults(std::span<GenerateResult> results) const {
  for (size_t i = 0; i < std::min(results.size(), lanes_.size()); ++i) results[i] = lanes_[i].result;
}

void Generation::DropFullLanes() {
  for (Lane& lane : lanes_) {
    if (is_cancelled_) return;
    if (lane.is_active && lane.state->tokens.size() >= session_->n_ctx_)
      FinishLane(&lane, Finish::kContextFull);
  }
}

bool Generation::HasActiveLane() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.is_active; });
}

void Generation::GiveOutLogits() {
  const uint32_t n_vocab = session_->n_vocab();
  size_t row = 0;
  for (Lane& lane : lanes_) {
    if (!lane.is_active) continue;
    if (lane.state->has_logits) {
      lane.logits = lane.state->logits;
    } else {
      lane.state->n_computed = static_cast<uint32_t>(lane.state->tokens.size());
      lane.logits = std::span<float>(session_->logits_).subspan(row++ * n_vocab, n_vocab);
    }
  }
}

Status Generation::SampleLanes() {
  for (Lane& lane : lanes_) {
    if (is_cancelled_) return Status::Ok();
    if (lane.is_active) KVRUN_RETURN_IF_ERROR(SampleLane(&lane));
  }
  return Status::Ok();
}

Status Generation::SampleLane(Lane* lane) {
  const GenerateOptions& options = *lane->options;
  TokenId id = 0;
  {
    const AddElapsed timer(&session_->stats_.decode_ms);
    lane->state->has_logits = false;  // sampling changes them
    if (options.n_logprobs > 0) raw_logits_.assign(lane->logits.begin(), lane->logits.end());
    sampler_.SetOptions(options.sampler);
    KVRUN_ASSIGN_OR_RETURN(
        id, sampler_.Sample(lane->logits, lane->state->tokens,
                            options.draws_by_seed_alone ? 0 : lane->sequence, lane->state->n_generated()));
    if (options.n_logprobs > 0) lane->logprobs = LikeliestAnd(raw_logits_, options.n_logprobs, id);
  }
  session_->NoteToken();
  TakeToken(lane, id);
  return Status::Ok();
}

void Generation::TakeToken(Lane* lane, TokenId id) {
  const Tokenizer* tokenizer = session_->tokenizer_;
  lane->state->tokens.push_back(id);
  if (tokenizer != nullptr && !lane->options->ignore_end && tokenizer->IsEndOfGeneration(id)) {
    FinishLane(lane, Finish::kEnd);
    return;
  }
  ++lane->result.n_tokens;
  ++session_->stats_.answer_tokens;
  bytes_.clear();
  if (tokenizer != nullptr && lane->begins_text) bytes_ += tokenizer->Decode({id});
  if (tokenizer != nullptr && !lane->begins_text) tokenizer->AppendToken(id, false, &bytes_);
  lane->begins_text = lane->begins_text && bytes_.empty();
  HandOut(*lane, id, lane->text.Append(bytes_));
  if (is_cancelled_) return;
  if (lane->text.stopped()) {
    FinishLane(lane, Finish::kStop);
  } else if (lane->repeats.Note(id)) {
    FinishLane(lane, Finish::kRepeats);
  } else if (lane->result.n_tokens == lane->options->max_tokens) {
    FinishLane(lane, Finish::kLength);
  }
}

void Generation::FinishLane(Lane* lane, Finish finish) {
  lane->is_active = false;
  lane->result.finish = finish;
  const std::string_view rest = lane->text.Finish();
  if (!rest.empty()) HandOut(*lane, -1, rest);
}

void Generation::HandOut(const Lane& lane, TokenId id, std::string_view text) {
  if (!callback_) return;
  GeneratedToken token{.sequence = lane.sequence, .id = id, .text = text};
  if (id >= 0) token.logprobs = lane.logprobs;
  if (callback_(token)) is_cancelled_ = true;
}

}  // namespace kvrun
