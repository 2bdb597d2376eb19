// One call of Session::Generate, or an answer that is taken step by step (Session::BeginAnswer): several
// sequences continued together, a device step per token.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/forward/shared_step.h"
#include "runtime/engine/session/session.h"
#include "runtime/engine/text/repeat_watch.h"
#include "runtime/engine/text/sampler.h"
#include "runtime/engine/text/text_stream.h"

namespace kvrun {

class Generation {
 public:
  // The session and the options must outlive this; checked by the session. options: one for all, or one for
  // each sequence.
  Generation(Session* session, std::span<const uint32_t> sequences, std::span<const GenerateOptions> options,
             TokenCallback callback);

  Status Run();
  // A token of each sequence that goes on; nothing else is done with the session between two of them. After
  // an error, and where it is done, not again.
  Status Step();
  // Step in its parts, between which others' may be computed: BeginStep; Compute, or what it computes as a
  // row of a step that sessions share (JointAnswers); EndStep, where that succeeded.
  void BeginStep();
  Status Compute();
  Status EndStep();
  // Null: Compute alone can do it, or has nothing to do.
  StepMember* member() const;
  // Where there is a member. Logits are for EndStep; the step is computed under the lock.
  SharedStep::Row RowToCompute();
  std::unique_lock<std::mutex> LockDevice() { return session_->runner_.Lock(); }
  // It was computed, and this is the answer's share of the time.
  void NoteComputed(std::chrono::steady_clock::duration share);
  // All have finished, or the callback asked to stop.
  bool is_done() const { return is_cancelled_ || !HasActiveLane(); }
  // Lanes that did not finish read kCancelled. results: empty or a place for each sequence.
  void WriteResults(std::span<GenerateResult> results) const;

 private:
  struct Lane {
    uint32_t sequence;
    SequenceState* state;
    const GenerateOptions* options;
    TextStream text;
    RepeatWatch repeats;
    GenerateResult result = {};
    bool begins_text = false;  // nothing but control tokens before
    bool is_active = true;
    std::span<float> logits = {};
    std::vector<TokenLogprob> logprobs = {};  // of the token that was sampled
  };

  bool BeginsText(const SequenceState& state) const;
  void DropFullLanes();
  bool HasActiveLane() const;
  void GiveOutLogits();
  Status SampleLanes();
  Status SampleLane(Lane* lane);
  void TakeToken(Lane* lane, TokenId id);
  void FinishLane(Lane* lane, Finish finish);
  void HandOut(const Lane& lane, TokenId id, std::string_view text);

  Session* session_;
  const TokenCallback callback_;
  Sampler sampler_;  // of all lanes, as its memory is of the vocabulary's size
  std::vector<Lane> lanes_;
  std::string bytes_;  // of the token that was sampled; kept, as a new one would cost an allocation per token
  std::vector<float> raw_logits_;  // kept where log-probabilities are wanted, as sampling changes them
  bool is_cancelled_ = false;
};

}  // namespace kvrun
