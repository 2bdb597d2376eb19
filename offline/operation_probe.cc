#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "offline/fitting_points.h"
#include "offline/probe.h"
#include "platform/base/units.h"
#include "runtime/capi/handles.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun::offline {
namespace {

constexpr uint32_t kSteps = 6;  // of a run
constexpr uint32_t kRuns = 5;   // the median counts: what else the machine does falls into one or two of them
constexpr uint32_t kSelect = 400;
constexpr uint32_t kWindow = 64;
constexpr uint32_t kLeastContext = 256;
constexpr uint32_t kMaxContext = 1U << 27;

struct Point {
  std::string options;
  uint32_t batch = 0;
  uint32_t ctx = 0;
  bool operator==(const Point&) const = default;
};

// What a budget of 1/13 takes, but for as many entries as the paper selects.
struct Choices {
  uint32_t select = kSelect;
  uint32_t rank = 0;
  std::string index = "int4";
  std::string type = "fp8";

  std::string Line() const {
    return fmt::format(
        "--kv-method kvswap --kv-group 4 --kv-select {} --kv-window {} --kv-rank {} --kv-index {} --kv-type "
        "{}",
        select, kWindow, rank, index, type);
  }
};

uint32_t TypeNumber(KvType type) {
  switch (type) {
    case KvType::kF32: return 1;
    case KvType::kF16: return 2;
    case KvType::kFp8: return 3;
    case KvType::kInt8: return 4;
    case KvType::kInt4: return 5;
  }
  return 0;
}

class Points {
 public:
  Points(uint32_t batch, uint32_t ctx) : batch_(batch), ctx_(ctx) {}

  void Add(const Choices& choices) { Add({choices.Line(), batch_, ctx_}); }
  void Add(Point point) {
    if (std::find(points_.begin(), points_.end(), point) == points_.end())
      points_.push_back(std::move(point));
  }
  std::vector<Point> Take() { return std::move(points_); }

 private:
  uint32_t batch_;
  uint32_t ctx_;
  std::vector<Point> points_;
};

// `kv_dim`: floats of a token's K in a layer. The first point is the one that the others vary.
std::vector<Point> PointsOf(const OperationProbeOptions& options, uint32_t kv_dim) {
  const uint32_t batch = options.batches.front();
  const uint32_t ctx = options.contexts.front();
  const uint32_t select = std::min(kSelect, ctx / 4);
  const uint32_t rank = std::min(RoundUp(CeilDiv(kv_dim, 8U), 4U), kv_dim);
  const Choices usual{.select = select, .rank = rank};
  Points points(batch, ctx);
  points.Add(usual);
  for (const uint32_t other : options.batches) points.Add({usual.Line(), other, ctx});
  for (const uint32_t other : options.contexts) {
    // As many entries, so that the context alone differs; fewer where it is too short.
    const Choices there{.select = std::min(select, other / 4), .rank = rank};
    points.Add({there.Line(), batch, other});
  }
  for (const uint32_t other : {select / 4, select / 2, 2 * select})
    points.Add({.select = other, .rank = rank});
  for (const uint32_t other : {rank / 2, 2 * rank, 4 * rank}) {
    if (other >= 4 && other % 4 == 0 && other <= kv_dim) points.Add({.select = select, .rank = other});
  }
  for (const char* type : {"int8", "f16"}) points.Add({.select = select, .rank = rank, .index = type});
  for (const char* type : {"f16", "int8", "int4", "fp8,int4"}) {
    points.Add({.select = select, .rank = rank, .type = type});
  }
  points.Add({"--kv-method full", batch, ctx});
  return points.Take();
}

Status CheckOptions(const kvrun_engine* engine, const OperationProbeOptions& options) {
  const auto refuse = [](std::string why) { return Status(StatusCode::kInvalidArgument, std::move(why)); };
  if (!engine->profile) return refuse("only an engine that was made with profile on times operations");
  if (options.batches.empty() || options.contexts.empty())
    return refuse("name a batch and a context to measure (--batch, --ctx)");
  for (const uint32_t batch : options.batches) {
    if (batch == 0 || batch > KVRUN_MAX_SEQUENCES) {
      return refuse(fmt::format("a batch of {} cannot be measured: it can have 1 to {} sequences", batch,
                                KVRUN_MAX_SEQUENCES));
    }
  }
  for (const uint32_t ctx : options.contexts) {
    if (ctx < kLeastContext || ctx > kMaxContext) {
      return refuse(fmt::format("a context of {} tokens cannot be measured: it can have {} to {} tokens", ctx,
                                kLeastContext, kMaxContext));
    }
  }
  return Status::Ok();
}

std::map<std::string, uint32_t> ShapeOf(const Point& point, const BenchmarkResult& result) {
  std::map<std::string, uint32_t> shape = {{"batch", point.batch}, {"ctx", point.ctx}};
  const uint32_t f16 = TypeNumber(KvType::kF16);
  if (!result.report) {  // all KV in memory, as it is by default
    shape.insert({{"entries", point.ctx}, {"k_type", f16}, {"v_type", f16}});
    return shape;
  }
  const KvPlan& plan = result.report->plan;
  shape.insert({{"group", plan.record.group_tokens},
                {"entries", std::min(point.ctx, plan.choice.n_chosen * plan.record.group_tokens +
                                                    plan.n_statics() + plan.window.n_entries)},
                {"k_type", TypeNumber(plan.record.k_type)},
                {"v_type", TypeNumber(plan.record.v_type)}});
  if (plan.index.rank != 0) {
    shape.insert({{"rank", plan.index.rank}, {"index_type", TypeNumber(plan.index.type)}});
  }
  return shape;
}

// In the order in which the device names them; one that a run lacks took no time there.
std::vector<OperationRow> MedianRows(const BenchmarkResult& result,
                                     const std::map<std::string, uint32_t>& shape) {
  std::vector<OperationRow> rows;
  for (const OperationTime& named : result.operations) {
    std::vector<double> times_us;
    for (const std::vector<OperationTime>& run : result.operations_of_runs) {
      const auto found = std::find_if(run.begin(), run.end(),
                                      [&](const OperationTime& time) { return time.name == named.name; });
      times_us.push_back(found == run.end() ? 0.0 : 1e3 * found->milliseconds / kSteps);
    }
    std::sort(times_us.begin(), times_us.end());
    rows.push_back({.operation = named.name, .shape = shape, .us = times_us[times_us.size() / 2]});
  }
  return rows;
}

Result<BenchmarkResult> Measure(Engine& engine, const Point& point, const OperationProbeOptions& options,
                                const ProgressCallback& progress) {
  BenchmarkOptions asked;
  KVRUN_RETURN_IF_ERROR(ParseKvOptions(point.options, &asked.kv));
  asked.kv.storage.folder = options.folder;
  asked.kv.storage.allow_tmpfs = options.allow_tmpfs;
  asked.depths = {point.ctx};
  asked.n_decode = kSteps;
  asked.n_sequences = point.batch;
  asked.n_repetitions = kRuns;
  asked.fill_random = true;
  asked.hit_rate = 1.0;
  asked.weight_reads = false;
  KVRUN_ASSIGN_OR_RETURN(std::vector<BenchmarkResult> results, engine.RunBenchmark(asked, progress));
  return std::move(results.front());
}

}  // namespace

Result<OperationProfile> ProbeOperations(kvrun_engine* engine, const OperationProbeOptions& options,
                                         const OfflineProgress& progress) {
  KVRUN_RETURN_IF_ERROR(CheckOptions(engine, options));
  const std::vector<Point> points = PointsOf(options, engine->engine->model().config.kv_dim());
  std::vector<NamedPoint> named;
  for (size_t i = 0; i < points.size(); ++i) {
    const auto measure = [&, i]() -> Result<std::vector<OperationRow>> {
      const auto note = [&](uint64_t, uint64_t) {
        return progress && progress("operations", i, points.size());
      };
      if (note(0, 0)) return Status(StatusCode::kCancelled, "the measurement of operations was cancelled");
      KVRUN_ASSIGN_OR_RETURN(const BenchmarkResult result,
                             Measure(*engine->engine, points[i], options, note));
      return MedianRows(result, ShapeOf(points[i], result));
    };
    named.push_back({fmt::format("{} of {} tokens with {}", Counted(points[i].batch, "sequence"),
                                 points[i].ctx, points[i].options),
                     measure});
  }
  KVRUN_ASSIGN_OR_RETURN(OperationProfile profile, MeasureWhatFits(named));
  if (profile.rows.empty()) {
    return Status(StatusCode::kUnsupported,
                  "operations cannot be timed on this device: its driver has no timestamps");
  }
  if (progress) progress("operations", points.size(), points.size());
  return profile;
}

}  // namespace kvrun::offline
