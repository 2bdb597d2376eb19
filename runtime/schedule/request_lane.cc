#include "runtime/schedule/request_lane.h"

#include <algorithm>
#include <utility>

namespace kvrun {
namespace {

constexpr uint32_t kOnly = 0;  // sequence of a lane's session
// What takes longer to read is saved before the answer begins, too.
constexpr uint64_t kWorthSaving = 1024;

}  // namespace

RequestLane::RequestLane(RequestId id, Request request, std::unique_ptr<RequestEvents> events)
    : id_(id), request_(std::move(request)), events_(std::move(events)) {
  request_.generate.draws_by_seed_alone = true;
}

bool RequestLane::Progress(uint64_t done, const RestFn& rest) {
  const uint64_t n_ids = request_.ids.size();
  n_fed_ = n_before_feed_ + done;
  // What another has more of is read before its own end is.
  counts_.n_read = std::max(counts_.n_read, std::min(n_fed_, feeds_own_ ? n_ids : n_ids - 1));
  if (events_ != nullptr) events_->OnProgress(counts_.n_read, n_ids, counts_.n_cached);
  return rest() || is_dropped_;
}

// Another process has what is there, or it does not go with the options: then a new one is made. Where that
// cannot be had either, what is there was not to blame.
Status RequestLane::Open(SessionOptions options, const MakeSession& make, const std::string& new_path) {
  const auto try_place = [&](const StoredPrompts::Place& place) {
    options.path = place.path;
    options.read_only = place.is_read_only;
    return make(options);
  };
  Result<std::unique_ptr<Session>> session = try_place(place_);
  if (!session.ok() && !place_.is_new) {
    const StoredPrompts::Place anew = {.path = new_path};
    session = try_place(anew);
    if (session.ok()) given_up_ = std::exchange(place_, anew);
  }
  KVRUN_RETURN_IF_ERROR(session.status());
  session_ = std::move(session).value();
  return Status::Ok();
}

Status RequestLane::Read(SessionOptions options, StoredPrompts::Place place, const MakeSession& make,
                         const std::string& new_path, const RestFn& rest) {
  place_ = std::move(place);
  if (is_cancelled_) return RequestCancelled();
  options.progress = [this, rest](uint64_t done, uint64_t) { return Progress(done, rest); };
  KVRUN_RETURN_IF_ERROR(Open(std::move(options), make, new_path));
  do {
    KVRUN_RETURN_IF_ERROR(Feed());
  } while (!feeds_own_);
  if (session_->turn_stats().prefill_tokens >= kWorthSaving) Save();
  return Status::Ok();
}

// At least the last token is computed, as its logits are needed, and the one before it: a token alone counts
// as generated, attends to what is selected for it, and so answers differently from the prompt that is read
// whole. What cannot be read back, or cut there, is read anew.
Status RequestLane::Feed() {
  feeding_ = request_.ids;
  feeds_own_ = true;
  const std::span<const TokenId> ids = feeding_;
  const auto n_ids = static_cast<uint32_t>(ids.size());
  const uint32_t common = std::min(
      {CommonLength(session_->Tokens(kOnly), ids), session_->Length(kOnly), n_ids - std::min(n_ids, 2U)});
  const auto feed_from = [&](uint32_t begin) -> Status {
    if (!taken_over_at_ || begin < counts_.n_cached) counts_.n_cached = counts_.n_read = begin;
    n_before_feed_ = n_fed_ = begin;
    is_saved_ = false;
    KVRUN_RETURN_IF_ERROR(session_->Truncate(kOnly, begin));
    return session_->Feed(kOnly, ids.subspan(begin));
  };
  const Status status = feed_from(common);
  const bool may_be_of_kept = status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kIo ||
                              status.code() == StatusCode::kUnsupported;
  if (status.ok() || common == 0 || !may_be_of_kept) return status;
  return feed_from(0);
}

Status RequestLane::BeginAnswer() {
  KVRUN_ASSIGN_OR_RETURN(
      answer_, session_->BeginAnswer(std::span(&kOnly, 1), std::span(&request_.generate, 1),
                                     [this](const GeneratedToken& token) { return NoteToken(token); }));
  return Status::Ok();
}

bool RequestLane::NoteToken(const GeneratedToken& token) {
  if (counts_.n_answered == 0 && taken_over_at_) {
    ttft_ms_ = std::chrono::duration<double, std::milli>(Clock::now() - *taken_over_at_).count();
  }
  counts_.n_answered += token.id >= 0 ? 1 : 0;
  is_saved_ = false;
  return events_->OnToken(token) || is_cancelled_;
}

// What cannot be saved is read again another time: the answer is not the worse for it.
void RequestLane::Save() {
  if (session_ == nullptr || !session_->is_kept() || is_saved_) return;
  is_saved_ = session_->SavePoint().ok();
}

std::vector<TokenId> RequestLane::KeptTokens() const {
  if (session_ == nullptr) return {};
  const bool is_kept = place_.is_read_only || (session_->is_kept() && is_saved_);
  if (!is_kept) return {};
  const std::span<const TokenId> tokens = session_->Tokens(kOnly);
  return {tokens.begin(), tokens.end()};
}

void RequestLane::End(const Status& status) {
  if (events_ == nullptr) return;
  RequestOutcome outcome;
  outcome.status = status;
  if (answer_ != nullptr) {
    answer_->WriteResults(std::span(&outcome.result, 1));
    session_->EndAnswer();
    if (status.ok() && is_cancelled_) outcome.status = RequestCancelled();
  }
  if (session_ != nullptr) {
    outcome.stats = stats();
    outcome.notes = session_->notes();
    outcome.details = session_->details();
    outcome.kv = session_->kv_report();
  }
  events_->OnEnd(outcome);
}

// Where another's reading was taken over, time counts from there, and tokens that it had read were there.
SessionStats RequestLane::stats() const {
  if (session_ == nullptr) return {};
  SessionStats stats = session_->turn_stats();
  if (!taken_over_at_) return stats;
  const uint64_t n_new = counts_.n_read - std::min(counts_.n_cached, counts_.n_read);
  if (stats.prefill_tokens > 0) {
    stats.prefill_ms *= std::min(1.0, static_cast<double>(n_new) / static_cast<double>(stats.prefill_tokens));
  }
  stats.prefill_tokens = n_new;
  stats.cached_tokens = counts_.n_cached;
  stats.ttft_ms = ttft_ms_;
  return stats;
}

bool RequestLane::would_lose_much() const {
  return session_ != nullptr && n_fed_ < feeding_.size() && n_fed_ >= session_->Length(kOnly) + kWorthSaving;
}

void RequestLane::EndAlone() {
  RequestOutcome outcome;
  outcome.status = RequestCancelled();
  outcome.stats.prefill_tokens = counts_.n_read - counts_.n_cached;
  outcome.stats.cached_tokens = counts_.n_cached;
  outcome.notes = session_->notes();
  outcome.details = session_->details();
  outcome.kv = session_->kv_report();
  events_->OnEnd(outcome);
  events_ = nullptr;
}

uint32_t RequestLane::CommonWith(const RequestLane& other, uint32_t n_ctx) const {
  if (session_->n_ctx() < n_ctx) return 0;
  const uint32_t n_common = CommonLength(feeding_, other.ids());
  return StoredPrompts::MayCut(feeding_.size(), n_common) && n_common >= kWorthSaving ? n_common : 0;
}

void RequestLane::TakeOver(std::unique_ptr<RequestLane> other) {
  id_ = other->id_;
  counts_.n_cached = counts_.n_read = std::min<uint64_t>(n_fed_, CommonLength(feeding_, other->ids()));
  request_ = std::move(other->request_);
  feeds_own_ = feeding_ == request_.ids;
  events_ = std::move(other->events_);
  is_cancelled_ = other->is_cancelled_.load();
  taken_over_at_ = Clock::now();
}

}  // namespace kvrun
