// kvrun logits: raw logits, or the negative log-likelihood of each next token, of given ids.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <optional>
#include <span>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/ids.h"
#include "apps/common/outputs.h"
#include "apps/common/session_plan.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/report.h"

namespace kvrun::cli {
namespace {

struct LogitsOptions {
  SharedOptions shared;
  std::string ids;
  std::string out;
  std::string nll;
  uint32_t last = 0;
  bool force = false;
};

float NegativeLogLikelihood(std::span<const float> logits, int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<float>(largest + std::log(sum) -
                            static_cast<double>(logits[static_cast<size_t>(token)]));
}

// Takes the logits as they come; only the likelihoods are kept in memory.
class LogitsSink {
 public:
  LogitsSink(const LogitsOptions& options, const std::vector<int32_t>& ids, uint32_t vocab_size)
      : ids_(ids), vocab_size_(vocab_size), wants_nll_(!options.nll.empty()) {
    const size_t last = options.last == 0 ? ids.size() : std::min<size_t>(options.last, ids.size());
    first_written_ = ids.size() - last;
    if (!options.out.empty()) out_.emplace(options.out);
    if (wants_nll_) nll_file_.emplace(options.nll);
  }

  // How many of the last positions are needed.
  size_t last() const { return wants_nll_ ? ids_.size() : ids_.size() - first_written_; }
  const std::vector<float>& nll() const { return nll_; }

  static int Callback(void* user, uint32_t position, uint32_t rows, const float* logits) {
    auto* sink = static_cast<LogitsSink*>(user);
    try {
      sink->Take(position, rows, logits);
    } catch (...) {
      sink->error_ = std::current_exception();
      return 1;
    }
    return 0;
  }

  void RethrowError() const {
    if (error_) std::rethrow_exception(error_);
  }

  void Commit() {
    if (wants_nll_) {
      nll_file_->Write(nll_.data(), nll_.size() * sizeof(float));
      nll_file_->Commit();
    }
    if (out_) out_->Commit();
  }

 private:
  void Take(uint32_t position, uint32_t rows, const float* logits) {
    for (uint32_t row = 0; row < rows; ++row) {
      const std::span<const float> values(logits + size_t{row} * vocab_size_, vocab_size_);
      const size_t at = size_t{position} + row;
      if (out_ && at >= first_written_) out_->Write(values.data(), values.size_bytes());
      if (wants_nll_ && at + 1 < ids_.size()) nll_.push_back(NegativeLogLikelihood(values, ids_[at + 1]));
    }
  }

  const std::vector<int32_t>& ids_;
  uint32_t vocab_size_;
  bool wants_nll_;
  size_t first_written_ = 0;
  std::optional<ResultFile> out_;
  std::optional<ResultFile> nll_file_;
  std::vector<float> nll_;
  std::exception_ptr error_;
};

void Report(const LogitsOptions& options, const Session& session, const Json& engine_info,
            const LogitsSink& sink, size_t positions) {
  const Json stats = SessionStats(session);
  Json object = {{"positions", positions}};
  std::string text;
  if (!sink.nll().empty()) {
    const double sum = std::accumulate(sink.nll().begin(), sink.nll().end(), 0.0);
    const double mean = sum / static_cast<double>(sink.nll().size());
    object["mean_nll"] = mean;
    object["perplexity"] = std::exp(mean);
    text = fmt::format("nll      mean {:.6f}, perplexity {:.4f}\n", mean, std::exp(mean));
  }
  AddStatistics(stats, engine_info, &object);
  if (options.shared.json) WriteStdout(JsonLine(object));
  if (!options.shared.json && !options.shared.quiet) {
    WriteStderr(text + SummaryText(stats) +
                (options.shared.verbose ? StatisticsText(stats, engine_info) : "") + ProfileText(stats));
  }
}

OutputFiles FilesOf(const LogitsOptions& options, const Model& model) {
  OutputFiles files{.inputs = InputFiles(model, options.shared), .force = options.force};
  files.inputs.push_back(options.ids);
  for (const std::string& output : {options.out, options.nll}) {
    if (!output.empty()) files.results.push_back(output);
  }
  return files;
}

int Logits(const LogitsOptions& options) {
  if (options.ids.empty()) throw UsageError("no ids are named: give --ids FILE");
  if (options.out.empty() && options.nll.empty()) throw UsageError("nothing to write: give --out or --nll");
  const Model model = OpenNamedModel(options.shared);
  OutputFiles files = FilesOf(options, model);
  CheckOutputs(files);
  const uint32_t vocab_size = kvrun_model_vocab_size(model.get());
  const std::vector<int32_t> ids = ReadIds(options.ids, vocab_size);
  if (!options.nll.empty() && ids.size() < 2) {
    throw Failure(KVRUN_INVALID_ARGUMENT, options.ids + " has one id only: --nll needs a next token");
  }
  const uint32_t n_ctx = ChooseContext(model, options.shared, ids.size(), 1, options.ids);
  SessionPlan plan = PlanSession(model, options.shared, 1, n_ctx);
  if (!plan.adapter.empty()) {
    files.inputs.push_back(plan.adapter);
    CheckOutputs(files);
  }
  LogitsSink sink(options, ids, vocab_size);  // before the weights: a folder may refuse the files
  Progress progress(ProgressModeOf(options.shared));
  const LoadedEngine loaded = LoadEngine(model, options.shared, &progress);
  const Session session = StartSession(loaded, options.shared, &plan, &progress);
  const kvrun_status status = kvrun_session_feed_logits(session.get(), 0, ids.data(), ids.size(), sink.last(),
                                                        LogitsSink::Callback, &sink);
  progress.Clear();
  sink.RethrowError();
  Check(status);
  sink.Commit();
  Report(options, session, loaded.info, sink, ids.size());
  return 0;
}

}  // namespace

Command AddLogitsCommand(CLI::App* program) {
  auto options = std::make_shared<LogitsOptions>();
  auto set =
      std::make_shared<OptionSet>(program, "logits", "Compute raw logits or likelihoods of given token ids");
  AddModelOption(set.get(), &options->shared);
  set->Text("--ids", &options->ids, "FILE",
            "a file of token ids, separated by white space (-: standard input; required)");
  set->AddExample("kvrun logits -m model.gguf --ids ids.txt --nll nll.f32",
                  "write the negative log-likelihood of each next token");
  set->AddExample("kvrun logits -m model.gguf --ids ids.txt --last 1 --out logits.f32",
                  "write the logits after the last token");
  set->Group(HelpGroup::kOutput);
  set->Number("--last", &options->last, 0, std::numeric_limits<uint32_t>::max(),
              "write only the last N positions to --out (default 0: all)");
  set->Text("--out", &options->out, "FILE", "write raw logits here, float32 [positions, vocabulary]");
  set->Text("--nll", &options->nll, "FILE", "write -log p of each next token here, float32 [ids - 1]");
  AddForceOption(set.get(), &options->force);
  AddEngineOptions(set.get(), &options->shared);
  AddReportOptions(set.get(), &options->shared);
  AddVerboseOption(set.get(), &options->shared);
  return {set, {options, &options->shared.json}, [options] { return Logits(*options); }};
}

}  // namespace kvrun::cli
