#include "apps/kvrun/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/session_plan.h"
#include "apps/kvrun/report.h"
#include "apps/kvrun/token_json.h"

namespace kvrun::cli {
namespace {

struct Line {
  std::string where;  // "prompts.jsonl: line 3"
  std::string prompt;
};

struct Item {
  size_t index;
  std::vector<int32_t> ids;
};

std::string ParsePrompt(std::string_view text, const std::string& where) {
  const Json json = ParseJson(text);
  if (json.is_discarded()) throw Failure(KVRUN_INVALID_ARGUMENT, where + " is not JSON");
  const auto prompt = json.is_object() ? json.find("prompt") : json.end();
  if (prompt == json.end() || !prompt->is_string()) {
    throw Failure(KVRUN_INVALID_ARGUMENT, where + " is not an object with a \"prompt\" that is a string");
  }
  return prompt->get<std::string>();
}

// Blank lines are skipped.
std::vector<Line> ReadLines(const std::string& path) {
  const std::string text = ReadText(path);
  const std::string name = path == "-" ? "standard input" : path;
  std::vector<Line> lines;
  size_t number = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = std::string_view(text).substr(start, end - start);
    start = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}: line {}", name, number);
    lines.push_back({where, ParsePrompt(line, where)});
  }
  if (lines.empty()) throw Failure(KVRUN_INVALID_ARGUMENT, name + " has no prompt in it");
  return lines;
}

class BatchRunner {
 public:
  BatchRunner(const BatchJob& job, const Model& model, const std::vector<Line>& lines)
      : job_(job), model_(model), progress_(ProgressModeOf(job.shared)) {
    uint32_t n_ctx = 0;
    if (job.chat && !job.shared.quiet) NoteLostBytes(model, job.form, job.system, "the system message");
    for (const Line& line : lines) {
      const std::string what = line.where + ": the prompt";
      items_.push_back({items_.size(), job.chat ? EncodeChat(model, job.form, job.system, line.prompt)
                                                : EncodePlain(model, job.form, line.prompt, what)});
      if (!job.shared.quiet) NoteLostBytes(model, job.form, line.prompt, what);
      n_ctx = std::max(n_ctx, ChooseContext(model, job.shared, items_.back().ids.size(),
                                            job.generation.values.max_tokens, what));
    }
    const auto n_sequences = static_cast<uint32_t>(std::min<size_t>(items_.size(), KVRUN_MAX_SEQUENCES));
    SessionPlan plan = PlanSession(model, job.shared, n_sequences, n_ctx, job.generation.values.seed);
    loaded_ = LoadEngine(model, job.shared, &progress_);
    session_ = StartSession(loaded_, job.shared, &plan, &progress_);
  }

  int Run() {
    for (size_t start = 0; start < items_.size(); start += KVRUN_MAX_SEQUENCES) {
      const size_t count = std::min<size_t>(items_.size() - start, KVRUN_MAX_SEQUENCES);
      if (!RunGroup(std::span(items_).subspan(start, count))) return kExitInterrupted;
    }
    return 0;
  }

 private:
  // False if it was interrupted.
  bool RunGroup(std::span<const Item> group) {
    kvrun_session_stats_reset(session_.get());
    for (uint32_t i = 0; i < group.size(); ++i) {
      progress_.SetLabel(fmt::format("prompt {} of {}", group[i].index + 1, items_.size()));
      Check(kvrun_session_truncate(session_.get(), i, 0));
      Check(kvrun_session_feed(session_.get(), i, group[i].ids.data(), group[i].ids.size()));
    }
    progress_.Clear();
    PieceSink sink;
    if (job_.json_lines) {
      sink = [&](const GeneratedPiece& piece) {
        Json line = {{"index", group[piece.sequence].index}};
        line.update(PieceJson(model_, piece));
        return TryWriteStdout(JsonLine(line));
      };
    }
    const std::vector<Answer> answers =
        GenerateInto(session_, static_cast<uint32_t>(group.size()), job_.generation, sink);
    const Json stats = SessionStats(session_);
    for (size_t i = 0; i < group.size(); ++i) WriteAnswer(group[i], answers[i], stats);
    if (!job_.shared.quiet && !job_.shared.json) {
      WriteStderr(fmt::format("prompts  {} to {} of {}\n", group.front().index + 1, group.back().index + 1,
                              items_.size()) +
                  SummaryText(stats) + (job_.shared.verbose ? StatisticsText(stats, loaded_.info) : "") +
                  ProfileText(stats));
    }
    return std::none_of(answers.begin(), answers.end(),
                        [](const Answer& answer) { return answer.finish == KVRUN_FINISH_CANCELLED; });
  }

  void WriteAnswer(const Item& item, const Answer& answer, const Json& stats) const {
    Json object = {{"index", item.index},
                   {"text", answer.text},
                   {"tokens", answer.tokens},
                   {"finish", FinishName(answer.finish)},
                   {"prompt_tokens", item.ids.size()}};
    if (job_.generation.values.n_logprobs > 0) object["logprobs"] = LogprobsJson(model_, answer.logprobs);
    if (job_.shared.json) AddStatistics(stats, loaded_.info, &object);
    WriteStdout(JsonLine(object));
  }

  const BatchJob& job_;
  const Model& model_;
  Progress progress_;
  std::vector<Item> items_;
  LoadedEngine loaded_;
  Session session_;
};

}  // namespace

int RunBatch(const BatchJob& job) {
  const std::vector<Line> lines = ReadLines(job.path);
  const Model model = OpenNamedModel(job.shared);
  return BatchRunner(job, model, lines).Run();
}

}  // namespace kvrun::cli
