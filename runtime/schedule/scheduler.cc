#include "runtime/schedule/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace kvrun {
namespace {

using namespace std::chrono_literals;

// For each second that a prompt is read, answers get so much: beside it they are a little slower than alone.
constexpr double kAnswersToReading = 1.0;
constexpr auto kReportEvery = 200ms;
// So many may go before one whose place is in use; then the others wait, too, until it is free.
constexpr uint32_t kMostOvertaken = 16;
constexpr uint32_t kOpenEndedRoom = 1024;
// A prompt that nobody waits for any more takes its memory for so long, unless another needs it.
constexpr auto kLongestParked = 10min;

uint32_t RoomOf(const RequestLane& lane) {
  return lane.generate().max_tokens != 0 ? lane.generate().max_tokens : kOpenEndedRoom;
}

uint32_t ContextOf(const RequestLane& lane, const SchedulerOptions& options) {
  const uint64_t needed = std::max<uint64_t>(options.least_ctx, lane.ids().size() + RoomOf(lane));
  return static_cast<uint32_t>(std::min<uint64_t>(needed, options.n_ctx));
}

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::Create(SchedulerOptions options,
                                                     RequestLane::MakeSession make) {
  if (options.n_parallel == 0 || options.n_ctx == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "a scheduler needs at least one request at a time, of one token");
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<StoredPrompts> stored, StoredPrompts::Open(options.stored));
  if (options.kv.kv.budget_bytes) {
    const uint64_t each = *options.kv.kv.budget_bytes / options.n_parallel;
    KVRUN_RETURN_IF_ERROR(SetKvOption("budget", fmt::format("{}", each), &options.kv));
  }
  std::unique_ptr<Scheduler> scheduler(new Scheduler(std::move(options), std::move(make), std::move(stored)));
  scheduler->UpdateReport();
  return scheduler;
}

Scheduler::~Scheduler() { EndAll(); }

void Scheduler::EndAll() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& lane : queue_) lane->Cancel();
    for (RequestLane* lane : running_) lane->Cancel();
  }
  while (StepOnce()) {
  }
  DropParked(0);
}

Result<RequestId> Scheduler::Add(Request request, std::unique_ptr<RequestEvents> events) {
  if (request.ids.empty()) return Status(StatusCode::kInvalidArgument, "the prompt has no token");
  const uint64_t needed = request.ids.size() + std::max(request.generate.max_tokens, 1U);
  if (needed > options_.n_ctx) {
    return Status(
        StatusCode::kContextFull,
        fmt::format("the prompt has {} tokens and the answer may have {}: together they are more than the "
                    "context of {}; shorten the prompt, or ask for a shorter answer",
                    request.ids.size(), std::max(request.generate.max_tokens, 1U), options_.n_ctx));
  }
  const std::lock_guard lock(mutex_);
  if (queue_.size() >= options_.most_queued) {
    return Status(StatusCode::kOutOfMemory,
                  fmt::format("{} requests wait already: try again later", queue_.size()));
  }
  queue_.push_back(std::make_unique<RequestLane>(++last_id_, std::move(request), std::move(events)));
  has_work_.notify_all();
  return last_id_;
}

void Scheduler::Cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  for (const auto& lane : queue_) {
    if (lane->id() == id) lane->Cancel();
  }
  for (RequestLane* lane : running_) {
    if (lane->id() == id) lane->Cancel();
  }
  has_work_.notify_all();
}

SchedulerReport Scheduler::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

void Scheduler::Wait(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  has_work_.wait_for(lock, at_most, [this] { return !queue_.empty(); });
}

bool Scheduler::StepOnce() {
  DropCancelled();
  DropParked(options_.n_parallel);
  if (reading_ != nullptr && reading_->lane().is_cancelled()) ParkReading();
  Admit();
  const bool has_work = reading_ != nullptr || !answering_.empty();
  if (reading_ != nullptr && (answering_.empty() || owed_to_answers_ <= Clock::duration::zero())) ReadSome();
  if (!answering_.empty()) StepAnswers();
  if (!has_work || Clock::now() - reported_ >= kReportEvery) UpdateReport();
  return has_work;
}

// Those that wait: the others end where they are.
void Scheduler::DropCancelled() {
  std::vector<std::unique_ptr<RequestLane>> dropped;
  {
    const std::lock_guard lock(mutex_);
    for (auto i = queue_.begin(); i != queue_.end();) {
      if (!(*i)->is_cancelled()) {
        ++i;
        continue;
      }
      dropped.push_back(std::move(*i));
      i = queue_.erase(i);
    }
  }
  for (auto& lane : dropped) Finish(std::move(lane), RequestCancelled());
}

// What is too short to be gone on with is not worth its bytes on flash. One that waits does so until there is
// another of the places.
std::optional<StoredPrompts::Place> Scheduler::PlaceOf(RequestLane* lane) {
  const uint32_t n_most = lane->generate().max_tokens;
  const bool may_be_of_use = n_most == 0 || lane->ids().size() + n_most >= StoredPrompts::kLeastCommon;
  if (!may_be_of_use) return StoredPrompts::Place{};
  if (lane->waiting().since == stored_->n_changes()) return std::nullopt;
  std::optional<StoredPrompts::Place> place = stored_->Take(lane->ids());
  if (!place) lane->waiting().since = stored_->n_changes();
  return place;
}

// One prompt is read at a time. The first in the queue whose place is free goes first.
void Scheduler::Admit() {
  if (reading_ != nullptr || answering_.size() >= options_.n_parallel) return;
  std::unique_ptr<RequestLane> lane;
  std::optional<StoredPrompts::Place> place;
  {
    const std::lock_guard lock(mutex_);
    for (auto i = queue_.begin(); i != queue_.end(); ++i) {
      if (TakeUpParked(&*i)) {
        queue_.erase(i);
        return;
      }
      place = PlaceOf(i->get());
      if (!place && (*i)->waiting().n_overtaken >= kMostOvertaken) break;
      if (!place) continue;
      for (auto earlier = queue_.begin(); earlier != i; ++earlier) ++(*earlier)->waiting().n_overtaken;
      lane = std::move(*i);
      queue_.erase(i);
      running_.push_back(lane.get());
      break;
    }
  }
  if (lane == nullptr) return;
  DropParked(options_.n_parallel - answering_.size() - 1);
  BeginReading(std::move(lane), *place);
}

SessionOptions Scheduler::OptionsOf(const RequestLane& lane) const {
  SessionOptions options;
  options.n_ctx = ContextOf(lane, options_);
  options.kv = options_.kv;
  options.key = options_.stored.key;
  options.answer_tokens = RoomOf(lane);
  return options;
}

void Scheduler::BeginReading(std::unique_ptr<RequestLane> lane, StoredPrompts::Place place) {
  std::unique_ptr<Turns> turns;
  try {
    turns = std::make_unique<Turns>();
  } catch (const std::exception& failure) {  // the system has no thread for it
    stored_->PutBack(place, {});
    return Finish(std::move(lane), Status(StatusCode::kOutOfMemory, failure.what()));
  }
  if (place.is_new) stored_->MakeRoom();
  SessionOptions session = OptionsOf(*lane);
  reading_ = std::make_unique<PromptReading>(std::move(turns), std::move(lane), std::move(session),
                                             std::move(place), make_, stored_->NewPath());
  reported_ = {};  // what is reported is another
}

void Scheduler::ReadSome() {
  const Clock::time_point begin = Clock::now();
  reading_->Run(options_.slice);
  const std::chrono::duration<double> taken = Clock::now() - begin;
  owed_to_answers_ = std::chrono::duration_cast<Clock::duration>(taken * kAnswersToReading);
  has_just_read_ = true;
  if (reading_->is_done()) NoteRead();
}

void Scheduler::NoteRead() {
  std::unique_ptr<RequestLane> lane = reading_->TakeLane();
  Status status = reading_->status();
  reading_ = nullptr;
  if (status.ok()) status = lane->is_cancelled() ? RequestCancelled() : lane->BeginAnswer();
  if (!status.ok()) return Finish(std::move(lane), status);
  answering_.push_back(std::move(lane));
  reported_ = {};
}

void Scheduler::ParkReading() {
  RequestLane& lane = reading_->lane();
  if (!lane.would_lose_much()) return lane.Drop();
  CountEnd(lane, RequestCancelled(), lane.stats());
  lane.EndAlone();
  stored_->SetParked(lane.place(), true);
  parked_.push_back({std::move(reading_), Clock::now()});
  reported_ = {};
}

bool Scheduler::TakeUpParked(std::unique_ptr<RequestLane>* lane) {
  if (parked_.empty()) return false;
  const uint32_t n_ctx = ContextOf(**lane, options_);
  auto best = parked_.end();
  uint32_t n_most = 0;
  for (auto i = parked_.begin(); i != parked_.end(); ++i) {
    const uint32_t n_common = i->reading->lane().CommonWith(**lane, n_ctx);
    if (n_common <= n_most) continue;
    best = i;
    n_most = n_common;
  }
  if (best == parked_.end()) return false;
  reading_ = std::move(best->reading);
  parked_.erase(best);
  stored_->SetParked(reading_->lane().place(), false);
  reading_->lane().TakeOver(std::move(*lane));
  running_.push_back(&reading_->lane());
  reported_ = {};
  return true;
}

void Scheduler::DropParked(size_t n_most) {
  while (!parked_.empty() &&
         (parked_.size() > n_most || Clock::now() - parked_.front().since > kLongestParked)) {
    const std::unique_ptr<PromptReading> reading = std::move(parked_.front().reading);
    parked_.erase(parked_.begin());
    Drop(*reading);
  }
}

void Scheduler::Drop(PromptReading& reading) {
  reading.lane().Drop();
  while (!reading.is_done()) reading.Run(options_.slice);
  Finish(reading.TakeLane(), reading.status());
}

void Scheduler::StepAnswers() {
  const Clock::time_point begin = Clock::now();
  std::vector<Generation*> answers;
  for (const auto& lane : answering_) answers.push_back(lane->answer());
  const std::vector<Status> statuses = joint_.Step(answers);
  size_t at = 0;
  for (const Status& status : statuses) {
    if (status.ok() && !answering_[at]->is_answered()) {
      ++at;
      continue;
    }
    std::unique_ptr<RequestLane> lane = std::move(answering_[at]);
    answering_.erase(answering_.begin() + static_cast<std::ptrdiff_t>(at));
    Finish(std::move(lane), status);
  }
  // What the device still had to do of the prompt is not the answers'.
  Clock::duration taken = Clock::now() - begin;
  if (std::exchange(has_just_read_, false)) {
    taken = std::min(taken, step_of_answers_.value_or(taken));
  } else {
    step_of_answers_ = taken;
  }
  owed_to_answers_ -= taken;
}

// The client has its answer before it is saved.
void Scheduler::Finish(std::unique_ptr<RequestLane> lane, const Status& status) {
  lane->End(status);
  const SessionStats of_request = lane->stats();
  lane->Save();
  SessionStats stats;
  if (lane->session() != nullptr) {
    stats = lane->session()->turn_stats();
    const std::optional<KvReport> report = lane->session()->kv_report();
    read_bytes_ += report ? report->store.read_bytes : 0;
    written_bytes_ += lane->session()->written_bytes();
  }
  const std::vector<TokenId> kept = lane->KeptTokens();
  if (lane->answer() != nullptr) joint_.Forget(lane->answer());
  lane->CloseSession();
  reported_ = {};
  if (lane->given_up()) stored_->GiveUp(*lane->given_up());
  stored_->PutBack(lane->place(), kept);
  if (!lane->has_ended_alone()) CountEnd(*lane, status, of_request);
  const std::lock_guard lock(mutex_);
  report_.prefill_ms += stats.prefill_ms;
  report_.decode_ms += stats.decode_ms;
  report_.decode_tokens += stats.decode_tokens;
}

void Scheduler::CountEnd(const RequestLane& lane, const Status& status, const SessionStats& stats) {
  const std::lock_guard lock(mutex_);
  std::erase(running_, &lane);
  ++report_.n_requests;
  report_.n_cancelled += lane.is_cancelled() ? 1 : 0;
  report_.n_failed += !status.ok() && !lane.is_cancelled() ? 1 : 0;
  report_.prompt_tokens += lane.counts().n_read;
  report_.cached_tokens += stats.cached_tokens;
  report_.answer_tokens += stats.answer_tokens;
}

void Scheduler::UpdateReport() {
  const auto report_of = [](const RequestLane& lane, RequestState state) {
    return RequestReport{.id = lane.id(),
                         .state = state,
                         .prompt_tokens = lane.ids().size(),
                         .read_tokens = lane.counts().n_read,
                         .cached_tokens = lane.counts().n_cached,
                         .answer_tokens = lane.counts().n_answered};
  };
  std::vector<RequestReport> requests;
  std::vector<SchedulerReport::OpenKv> kv;
  uint64_t read_bytes = read_bytes_;
  uint64_t written_bytes = written_bytes_;
  const auto note_session = [&](const RequestLane& lane) {
    if (lane.session() == nullptr) return;
    written_bytes += lane.session()->written_bytes();
    if (const std::optional<KvReport> report = lane.session()->kv_report()) {
      read_bytes += report->store.read_bytes;
      kv.push_back({*report, lane.session()->stats().decode_tokens});
    }
  };
  const auto note = [&](const RequestLane& lane, RequestState state) {
    requests.push_back(report_of(lane, state));
    note_session(lane);
  };
  for (const auto& lane : answering_) note(*lane, RequestState::kAnswering);
  if (reading_ != nullptr) note(reading_->lane(), RequestState::kReading);
  for (const Parked& parked : parked_) note_session(parked.reading->lane());
  std::optional<std::vector<StoredPrompts::Stored>> stored;
  if (reported_changes_ != stored_->n_changes()) stored = stored_->all();
  reported_changes_ = stored_->n_changes();
  const std::lock_guard lock(mutex_);
  for (const auto& lane : queue_) requests.push_back(report_of(*lane, RequestState::kQueued));
  report_.requests = std::move(requests);
  report_.kv = std::move(kv);
  report_.read_bytes = read_bytes;
  report_.written_bytes = written_bytes;
  if (stored) report_.stored = *std::move(stored);
  reported_ = Clock::now();
}

}  // namespace kvrun
