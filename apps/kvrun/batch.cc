#include "apps/kvrun/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/interrupt.h"
#include "apps/common/session_plan.h"
#include "apps/common/succeeds.h"
#include "apps/kvrun/answer_collector.h"
#include "apps/kvrun/batch_lines.h"
#include "apps/kvrun/report.h"
#include "apps/kvrun/request_scheduler.h"
#include "apps/kvrun/token_json.h"

namespace kvrun::cli {
namespace {

constexpr size_t kMostAtOnce = KVRUN_MAX_SEQUENCES;
constexpr uint32_t kWaitMs = 100;  // between two looks at whether it is to end, where nothing can be done

class BatchRunner;
struct Item;

// A line's request of the scheduler, from its begin until its answer is written.
struct Lane {
  Lane(const GenerationOptions& generation, Reasoning reasoning, PieceSink sink)
      : collector(generation, std::move(reasoning), std::move(sink)) {}

  AnswerCollector collector;
  BatchRunner* runner = nullptr;
  Item* item = nullptr;
  uint64_t request = 0;
  // Of its end.
  kvrun_status status = KVRUN_OK;
  std::string message;
  kvrun_finish finish = KVRUN_FINISH_CANCELLED;
  std::string stats;
};

// A line that can be answered.
struct Item {
  BatchLine* line = nullptr;
  size_t number = 0;         // among those that can be
  std::vector<int32_t> ids;  // until they are the scheduler's
  uint32_t n_prompt = 0;
  uint32_t n_ctx = 0;               // that it needs
  std::unique_ptr<Lane> lane = {};  // while it is computed
  bool has_ended = false;

  // Tokens that it asks for, where there is room for so many.
  uint32_t n_asked() const { return line->generation.values.max_tokens; }
  uint32_t room() const { return n_ctx - n_prompt; }
  bool ends_with_context() const { return n_asked() == 0 || n_asked() > room(); }
};

// Of what is wrong with a line, not with the model, the device or the options of all.
bool IsOfLineAlone(const Failure& failure) {
  return failure.status() == KVRUN_INVALID_ARGUMENT || failure.status() == KVRUN_CONTEXT_FULL ||
         failure.status() == KVRUN_UNSUPPORTED;
}

// A budget in bytes is of all that are computed at once. Each has a part of it, which has to suffice for it.
void CheckPartsOfBudget(const SessionPlan& plan) {
  const std::string* budget = plan.kv.Find("budget");
  const Json all = plan.kv_plan.is_object() ? plan.kv_plan.value("budget_bytes", Json()) : Json();
  if (budget == nullptr || budget->find_first_of("/%") != std::string::npos || !all.is_number()) return;
  SessionPlan one = plan;
  one.n_sequences = 1;
  one.kv.Set("--kv-budget", "budget", std::to_string(all.get<uint64_t>() / plan.n_sequences));
  Explained([&] { return AskPlan(one); },
            [&](const Failure& failure) {
              return fmt::format("{} lines are computed at once, and share the budget: for each, {}",
                                 plan.n_sequences, failure.what());
            });
}

// What a line's session says of its context, which was not said of the longest with other numbers.
Json NotesUnlike(const std::vector<std::string>& said, const Json& notes) {
  const auto begin_of = [](const std::string& note) {
    return note.substr(0, note.find_first_of("0123456789"));
  };
  Json unlike = Json::array();
  for (const Json& note : notes) {
    const std::string begin = begin_of(TextOf(note));
    if (std::none_of(said.begin(), said.end(),
                     [&](const std::string& one) { return begin_of(one) == begin; }))
      unlike.push_back(note);
  }
  return unlike;
}

class BatchRunner {
 public:
  BatchRunner(const BatchJob& job, const Model& model, std::vector<BatchLine> lines)
      : job_(job), model_(model), lines_(std::move(lines)), progress_(ProgressModeOf(job.shared)) {
    if (job.chat && !job.shared.quiet) NoteLostBytes(model, job.form, job.system, "the system message");
    for (BatchLine& line : lines_) {
      if (!line.error) TakeLine(&line);
      if (line.error) PrintMessage(line.error->what());
    }
    if (!items_.empty()) Start();
  }

  int Run() {
    while (n_ended_ < (is_interrupted_ ? n_added_ : items_.size())) {
      // Those that wait are few: all of a long file would be there twice.
      while (!is_interrupted_ && n_added_ < items_.size() && n_added_ - n_ended_ < 2 * kMostAtOnce)
        Add(&items_[n_added_]);
      if (n_ended_ < n_added_) Check(kvrun_scheduler_step(scheduler_.get(), kWaitMs, nullptr));
      if (stdout_error_ != 0) ThrowStdoutError(stdout_error_);
      if (!is_interrupted_ && Interrupted()) CancelAll();
      WriteEnded();
    }
    if (!is_interrupted_) WriteErrorsBefore(lines_.size());
    progress_.Clear();
    if (!items_.empty() && !job_.shared.quiet && !job_.shared.json) WriteStderr(Summary());
    if (is_interrupted_) return kExitInterrupted;
    return n_answered_ < lines_.size() ? kExitFailure : 0;
  }

 private:
  void TakeLine(BatchLine* line) {
    const std::string what = line->where + (line->messages.empty() ? ": the prompt" : ": the conversation");
    try {
      std::vector<int32_t> ids = Encode(*line, what);
      const uint32_t n_ctx =
          ChooseContext(model_, job_.shared, ids.size(), line->generation.values.max_tokens, what);
      NoteLost(*line, what);
      const auto n_prompt = static_cast<uint32_t>(ids.size());
      items_.push_back({line, items_.size() + 1, std::move(ids), n_prompt, n_ctx});
    } catch (const Failure& failure) {
      if (!IsOfLineAlone(failure)) throw;
      SetError(line, failure.status(), failure.what());
    }
  }

  static void SetError(BatchLine* line, kvrun_status status, const std::string& message) {
    line->error.emplace(status, message.starts_with(line->where) ? message : line->where + ": " + message);
  }

  void Start() {
    const auto n_parallel = static_cast<uint32_t>(std::min(items_.size(), kMostAtOnce));
    const auto longest = std::max_element(items_.begin(), items_.end(),
                                          [](const Item& a, const Item& b) { return a.n_ctx < b.n_ctx; });
    plan_ =
        PlanSession(model_, job_.shared, n_parallel, longest->n_ctx, job_.generation.of_prompts.values.seed);
    CheckPartsOfBudget(plan_);
    loaded_ = LoadEngine(model_, job_.shared, &progress_);
    CheckConfig(loaded_, job_.shared, &plan_);
    kvrun_scheduler_options options;
    kvrun_scheduler_options_init(&options);
    options.n_parallel = n_parallel;
    options.most_queued = 2 * kMostAtOnce;
    options.least_ctx = job_.shared.ctx == 0 ? 1 : job_.shared.ctx;  // as alone
    options.folder = "";
    scheduler_ = MakeScheduler(loaded_, plan_, options);
  }

  std::vector<int32_t> Encode(const BatchLine& line, const std::string& what) const {
    if (line.messages.empty()) {
      return job_.chat ? EncodeChat(model_, job_.form, job_.system, line.prompt)
                       : EncodePlain(model_, job_.form, line.prompt, what);
    }
    Json messages = line.messages;
    if (!job_.system.empty() && messages.front()["role"] != "system") {
      const Json system = {{"role", "system"}, {"content", job_.system}};
      messages.insert(messages.begin(), system);
    }
    return EncodeConversation(model_, job_.form, messages, line.tools);
  }

  void NoteLost(const BatchLine& line, const std::string& what) const {
    if (job_.shared.quiet) return;
    std::string text = line.prompt;
    for (const Json& message : line.messages) text += message["content"].get_ref<const std::string&>();
    NoteLostBytes(model_, job_.form, text, what);
  }

  // Null for a text that is continued: it is no chat.
  Reasoning ReasoningOf(const Item& item) const {
    const bool is_chat = job_.chat || !item.line->messages.empty();
    return is_chat ? BeginReasoning(model_, item.ids) : nullptr;
  }

  PieceSink SinkOf(const Item& item) {
    if (!job_.json_lines) return {};
    return [this, &item](const GeneratedPiece& piece) {
      if (piece.is_reasoning && !job_.form.shows_reasoning()) return 0;
      Json line = item.line->Beginning();
      line.update(PieceJson(model_, piece));
      progress_.Clear();
      if (stdout_error_ == 0) stdout_error_ = TryWriteStdout(JsonLine(line));
      return stdout_error_;
    };
  }

  void Add(Item* item) {
    ++n_added_;
    item->lane = std::make_unique<Lane>(item->line->generation, ReasoningOf(*item), SinkOf(*item));
    item->lane->runner = this;
    item->lane->item = item;
    kvrun_generate_options* const options = item->lane->collector.options();
    if (item->ends_with_context()) options->max_tokens = item->room();
    kvrun_request_events events = {};
    events.struct_size = sizeof(events);
    events.user = item->lane.get();
    events.progress = OnProgress;
    events.token = OnToken;
    events.end = OnEnd;
    const kvrun_status status = kvrun_scheduler_add(scheduler_.get(), item->ids.data(), item->ids.size(),
                                                    options, &events, &item->lane->request);
    item->ids = {};
    if (status != KVRUN_OK) End(item, status, kvrun_last_error());
  }

  // Of the scheduler, whose calls come one at a time, while it takes a step.
  static void OnProgress(void* user, uint64_t done, uint64_t total, uint64_t /*cached*/) {
    const auto* lane = static_cast<Lane*>(user);
    (void)Succeeds([&] { lane->runner->ShowRead(*lane->item, done, total); });
  }
  static int OnToken(void* user, uint32_t sequence, int32_t token, const char* text, size_t text_bytes) {
    return AnswerCollector::OnToken(&static_cast<Lane*>(user)->collector, sequence, token, text, text_bytes);
  }
  static void OnEnd(void* user, kvrun_status status, const char* message, const kvrun_generate_result* result,
                    const char* stats_json) {
    auto* lane = static_cast<Lane*>(user);
    lane->finish = result->finish;
    if (!Succeeds([&] { lane->runner->End(lane->item, status, message, stats_json); }))
      lane->status = KVRUN_OUT_OF_MEMORY;
  }

  void ShowRead(const Item& item, uint64_t done, uint64_t total) {
    if (std::exchange(shown_number_, item.number) != item.number)
      progress_.SetLabel(fmt::format("prompt {} of {}", item.number, items_.size()));
    (void)Progress::Callback(&progress_, KVRUN_PHASE_PREFILL, done, total);
  }
  void End(Item* item, kvrun_status status, const char* message, const char* stats_json = "{}") {
    item->has_ended = true;
    ++n_ended_;
    item->lane->status = status;
    item->lane->message = message;
    item->lane->stats = stats_json;
  }

  void CancelAll() {
    is_interrupted_ = true;
    for (size_t i = n_taken_; i < n_added_; ++i) {
      if (!items_[i].has_ended) kvrun_scheduler_cancel(scheduler_.get(), items_[i].lane->request);
    }
  }

  // Answers are in the order of their lines, and so are those that say what is wrong.
  void WriteEnded() {
    for (; n_taken_ < n_added_ && items_[n_taken_].has_ended; ++n_taken_) {
      Item* const item = &items_[n_taken_];
      TakeEnd(item);
      item->lane.reset();
    }
    if (!is_interrupted_) WriteErrorsBefore(n_taken_ < items_.size() ? items_[n_taken_].line->index : 0);
  }

  void TakeEnd(Item* item) {
    Lane* const lane = item->lane.get();
    const Json stats = ParseJson(lane->stats);
    NoteStatistics(lane->status, stats);
    const bool is_cancelled = lane->status == KVRUN_CANCELLED || lane->finish == KVRUN_FINISH_CANCELLED;
    if (is_interrupted_ && is_cancelled && !lane->collector.has_tokens()) return;  // as if it had not begun
    if (lane->status != KVRUN_OK && !(is_interrupted_ && is_cancelled)) {
      SetError(item->line, lane->status, ExplainAdapter(plan_, lane->message));
      progress_.Clear();
      return PrintMessage(item->line->error->what());
    }
    Answer answer = lane->collector.Finish(lane->finish);
    if (answer.finish == KVRUN_FINISH_LENGTH && item->ends_with_context())
      answer.finish = KVRUN_FINISH_CONTEXT_FULL;
    WriteAnswer(*item, answer, stats);
  }

  void NoteStatistics(kvrun_status status, const Json& stats) {
    const Json memory = stats.value("memory", Json::object());
    const auto all_of = [](const Json& object) { return object.value("all", uint64_t{0}); };
    if (memory_.empty() || all_of(memory) > all_of(memory_)) memory_ = memory;
    if (status != KVRUN_OK || std::exchange(has_told_notes_, true)) return;
    progress_.Clear();
    Json told = stats;
    told["notes"] = NotesUnlike(plan_.notes, stats.value("notes", Json::array()));
    TellSessionNotes(told, job_.shared, &plan_);
  }

  void WriteAnswer(const Item& item, const Answer& answer, const Json& stats) {
    WriteErrorsBefore(item.line->index);
    Json object = item.line->Beginning();
    object.update(AnswerJson(answer, item.n_prompt, job_.form.shows_reasoning()));
    if (item.line->generation.values.n_logprobs > 0)
      object["logprobs"] = LogprobsJson(model_, answer.logprobs);
    if (job_.shared.json) AddStatistics(stats, loaded_.info, &object);
    progress_.Clear();
    WriteStdout(JsonLine(object));
    n_written_ = item.line->index + 1;
    n_answered_ += answer.finish == KVRUN_FINISH_CANCELLED ? 0 : 1;
  }

  void WriteErrorsBefore(size_t end) {
    for (; n_written_ < end; ++n_written_) {
      const BatchLine& line = lines_[n_written_];
      if (!line.error) continue;
      Json object = line.Beginning();
      object["error"] = {{"status", kvrun_status_name(line.error->status())},
                         {"message", line.error->what()}};
      progress_.Clear();
      WriteStdout(JsonLine(object));
    }
  }

  // Of all lines together.
  std::string Summary() const {
    const Json report = SchedulerReport(scheduler_);
    const auto per_second = [&report](const char* tokens, const char* time_ms) {
      const double ms = report.value(time_ms, 0.0);
      return ms > 0.0 ? report.value(tokens, 0.0) * 1e3 / ms : 0.0;
    };
    const Json stats = {{"prefill_tokens", report.value("prompt_tokens", uint64_t{0})},
                        {"prefill_tps", per_second("prompt_tokens", "prefill_ms")},
                        {"answer_tokens", report.value("answer_tokens", uint64_t{0})},
                        {"decode_tokens", report.value("decode_tokens", uint64_t{0})},
                        {"decode_tps", per_second("decode_tokens", "decode_ms")},
                        {"memory", memory_}};
    std::string text = fmt::format("prompts  {} of {} answered\n", n_answered_, lines_.size()) +
                       SummaryText(stats) + (is_interrupted_ ? EndText(KVRUN_FINISH_CANCELLED, 0, 0) : "");
    if (!job_.shared.verbose) return text;
    text += StatisticsText(stats, loaded_.info);
    for (const auto& [name, key] : {std::pair("read", "read_bytes"), std::pair("written", "written_bytes")}) {
      if (const auto n_bytes = report.value(key, uint64_t{0}); n_bytes > 0)
        text += fmt::format("{:<8} {}\n", name, FormatBytes(n_bytes));
    }
    return text;
  }

  const BatchJob& job_;
  const Model& model_;
  std::vector<BatchLine> lines_;
  Progress progress_;
  std::vector<Item> items_;
  size_t n_added_ = 0;     // items, to the scheduler
  size_t n_ended_ = 0;     // of them
  size_t n_taken_ = 0;     // those of which nothing more is to be said
  size_t n_written_ = 0;   // lines whose answer is written
  size_t n_answered_ = 0;  // of them, without errors
  size_t shown_number_ = 0;
  bool is_interrupted_ = false;
  bool has_told_notes_ = false;
  int stdout_error_ = 0;
  Json memory_ = Json::object();  // when it was most
  SessionPlan plan_;
  LoadedEngine loaded_;
  Scheduler scheduler_;  // last: its requests use all of the above
};

}  // namespace

int RunBatch(const BatchJob& job, const Model& model) {
  std::vector<BatchLine> lines = ReadBatchLines(job.path, job.generation, job.shared.quiet);
  return BatchRunner(job, model, std::move(lines)).Run();
}

}  // namespace kvrun::cli
