#include "offline/time_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace kvrun::offline {
namespace {

constexpr double kSharpness = 4.0;
constexpr double kRidge = 1e-3;
constexpr int kSweeps = 400;
constexpr int kRounds = 14;
constexpr double kUsualError = 0.15;
constexpr size_t kFewestSamples = 4;
// Than any sample. They are spread over all that there is to choose: what is said far from them is noise.
constexpr double kMostBeyond = 10.0;

constexpr std::array kTypes = {KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4, KvType::kF32};

size_t TypeNumber(KvType type) {
  return static_cast<size_t>(std::find(kTypes.begin(), kTypes.end(), type) - kTypes.begin());
}

// Of A, after the constants of the batch sizes. What several types have in common is a term of its own, so
// that few samples of one type are not all that is known of it.
constexpr size_t kReadingTerms = 3;  // the last
constexpr size_t kTerms = 3 * kTypes.size() + 2 + 5 + kReadingTerms;
constexpr size_t kStorageTerms = 3;

double Fetches(const TimePoint& point) {
  return point.loads > 0.0 ? static_cast<double>(point.n_layers) * point.n_streams : 0.0;
}

std::array<double, kTerms> DeviceTerms(const TimePoint& point) {
  std::array<double, kTerms> terms{};
  const double batch = point.batch;
  const double n_entries = static_cast<double>(point.n_streams) * point.chosen_groups * point.group_tokens *
                           point.heads_per_record;
  const double scored = batch * point.ctx;
  terms[TypeNumber(point.k_type)] = n_entries / 1e3;
  terms[kTypes.size() + TypeNumber(point.v_type)] = n_entries / 1e3;
  terms[2 * kTypes.size() + TypeNumber(point.index_type)] = scored * point.rank / 1e5;
  size_t next = 3 * kTypes.size();
  terms[next++] = n_entries / 1e3;
  terms[next++] = scored * point.rank / 1e5;
  terms[next++] = scored / 1e4;
  terms[next++] = point.per_kv_head ? scored / 1e4 : 0.0;
  terms[next++] = scored / point.group_tokens / 1e4;
  terms[next++] = static_cast<double>(point.n_streams) * point.chosen_groups * point.n_layers / 1e4;
  terms[next++] = batch * point.window_entries / 1e2;
  terms[next++] = point.loads / 1e3;
  terms[next++] = point.loads * point.record_bytes / 1e6;
  terms[next++] = Fetches(point) / 1e2;
  return terms;
}

double Join(double a, double b) {
  const double larger = std::max(a, b);
  if (larger <= 0.0) return 0.0;
  return larger *
         std::pow(std::pow(a / larger, kSharpness) + std::pow(b / larger, kSharpness), 1 / kSharpness);
}

// The row's weight in the sum of the two that a value lies between, and which they are.
struct Between {
  size_t below = 0;
  size_t above = 0;
  double share = 0.0;  // of `above`
};
Between Locate(const std::vector<double>& values, double value) {
  const auto above = std::lower_bound(values.begin(), values.end(), value);
  if (above == values.begin()) return {0, 0, 0.0};
  if (above == values.end()) return {values.size() - 1, values.size() - 1, 0.0};
  const auto index = static_cast<size_t>(above - values.begin());
  const double low = std::log(values[index - 1]);
  return {index - 1, index, (std::log(value) - low) / (std::log(values[index]) - low)};
}

void SortUnique(std::vector<double>* values) {
  std::sort(values->begin(), values->end());
  values->erase(std::unique(values->begin(), values->end()), values->end());
}

}  // namespace

TimePoint PointOf(const SearchSetting& setting, const KvPlan& plan, const StepReads& reads) {
  const double n_free = reads.chosen_share * FreeGroups(plan);
  const uint32_t alignment = setting.io_alignment_bytes;
  const auto record_bytes = static_cast<uint32_t>(plan.record.size_bytes());
  TimePoint point;
  point.batch = setting.batch;
  point.ctx = setting.ctx;
  point.n_layers = setting.model.n_layers;
  point.n_streams = plan.n_streams;
  point.chosen_groups = plan.choice.n_pinned + static_cast<uint32_t>(std::lround(n_free));
  point.group_tokens = plan.record.group_tokens;
  point.heads_per_record = plan.record.n_heads;
  point.window_entries = plan.window.n_entries + plan.n_statics();
  point.rank = plan.index.rank;
  point.index_type = plan.index.type;
  point.k_type = plan.record.k_type;
  point.v_type = plan.record.v_type;
  point.per_kv_head = plan.choice.heads == HeadReduction::kPerKvHead;
  point.record_bytes = (record_bytes + alignment - 1) / alignment * alignment;
  point.loads = static_cast<double>(point.n_layers) * plan.n_streams * n_free * (1.0 - reads.hit_rate);
  point.reads = point.loads * reads.reads_per_load;
  return point;
}

StorageModel::StorageModel(const StorageProfile& storage) {
  std::map<std::pair<double, double>, double> rates;
  for (const StorageRate& rate : storage.rates) {
    const StorageRate& first = storage.rates.front();
    if (rate.backend != first.backend || rate.direct != first.direct) continue;
    block_bytes_.push_back(rate.block_bytes);
    depths_.push_back(rate.depth);
    rates[{rate.block_bytes, rate.depth}] = rate.bytes_per_s;
  }
  SortUnique(&block_bytes_);
  SortUnique(&depths_);
  for (const double bytes : block_bytes_) {
    // Where a depth was left out, the next smaller one's; before the first that is there, that one's.
    const auto known = std::find_if(depths_.begin(), depths_.end(), [&](double depth) {
      return rates.contains({bytes, depth});
    });
    double last = std::log(std::max(rates[{bytes, *known}], 1.0));
    for (const double depth : depths_) {
      const auto found = rates.find({bytes, depth});
      if (found != rates.end()) last = std::log(std::max(found->second, 1.0));
      log_rates_.push_back(last);
    }
  }
}

double StorageModel::BytesPerSecond(double block_bytes, double depth) const {
  const Between b = Locate(block_bytes_, block_bytes);
  const Between d = Locate(depths_, depth);
  const auto at = [&](size_t size_index, size_t depth_index) {
    return log_rates_[size_index * depths_.size() + depth_index];
  };
  const double low = (1 - d.share) * at(b.below, d.below) + d.share * at(b.below, d.above);
  const double high = (1 - d.share) * at(b.above, d.below) + d.share * at(b.above, d.above);
  const double rate = std::exp((1 - b.share) * low + b.share * high);
  // Smaller blocks than were measured come as often as those.
  return rate * std::min(1.0, block_bytes / block_bytes_.front());
}

double StorageModel::Milliseconds(const TimePoint& point) const {
  if (point.loads <= 0.0 || block_bytes_.empty()) return 0.0;
  const double n_fetches = static_cast<double>(point.n_layers) * point.n_streams;
  const double bytes = point.loads * point.record_bytes;
  return bytes / BytesPerSecond(bytes / point.reads, std::max(point.reads / n_fetches, 1.0)) * 1e3;
}

std::vector<double> NonNegativeLeastSquares(const std::vector<std::vector<double>>& x,
                                            const std::vector<double>& y, double ridge) {
  const size_t n = x.empty() ? 0 : x.front().size();
  std::vector<double> lengths(n);
  for (const auto& row : x) {
    for (size_t i = 0; i < n; ++i) lengths[i] += row[i] * row[i];
  }
  for (double& length : lengths) length = std::sqrt(length);
  std::vector<double> products(n * n);
  std::vector<double> targets(n);
  const auto scaled = [&](const std::vector<double>& row, size_t i) {
    return lengths[i] > 0.0 ? row[i] / lengths[i] : 0.0;
  };
  for (size_t row = 0; row < x.size(); ++row) {
    for (size_t i = 0; i < n; ++i) {
      targets[i] += scaled(x[row], i) * y[row];
      for (size_t j = 0; j < n; ++j) products[i * n + j] += scaled(x[row], i) * scaled(x[row], j);
    }
  }
  std::vector<double> weights(n);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < n; ++i) {
      if (lengths[i] <= 0.0) continue;
      double slope = targets[i];
      for (size_t j = 0; j < n; ++j) slope -= products[i * n + j] * weights[j];
      const double curvature = products[i * n + i] + ridge;
      weights[i] = std::max(0.0, weights[i] + (slope - ridge * weights[i]) / curvature);
    }
  }
  for (size_t i = 0; i < n; ++i) weights[i] = lengths[i] > 0.0 ? weights[i] / lengths[i] : 0.0;
  return weights;
}

struct TimeModel::Row {
  std::vector<double> device;   // A's terms
  std::vector<double> storage;  // B's terms
  double step_ms = 0.0;
};

TimeModel::Row TimeModel::RowOf(const StepSample& sample) const {
  Row row;
  for (const uint32_t batch : batches_) row.device.push_back(batch == sample.point.batch ? 1.0 : 0.0);
  for (const double term : DeviceTerms(sample.point)) row.device.push_back(term);
  row.storage = {storage_.Milliseconds(sample.point), sample.point.loads / 1e3, Fetches(sample.point) / 1e2};
  row.step_ms = sample.step_ms;
  return row;
}

double TimeModel::DeviceTime(const Row& row) const {
  return std::inner_product(row.device.begin(), row.device.end(), weights_.begin(), 0.0);
}
double TimeModel::StorageTime(const Row& row) const {
  const auto first = weights_.begin() + static_cast<std::ptrdiff_t>(row.device.size());
  return std::inner_product(row.storage.begin(), row.storage.end(), first, 0.0);
}

// Grows with the error as its logarithm: what was disturbed by something else counts little.
double TimeModel::Loss(const std::vector<Row>& rows) const {
  double loss = 0.0;
  for (const Row& row : rows) {
    const double error = Join(DeviceTime(row), StorageTime(row)) / row.step_ms - 1.0;
    loss += std::log1p(error * error / (kUsualError * kUsualError));
  }
  return loss;
}

// T is homogeneous: it equals the sum of its terms, each times its weight and times how T changes with A or B
// (Euler). With those changes as they are now the weights are a least squares problem; errors count relative
// to the step's time, and the less the farther one is off, as in Loss.
std::vector<double> TimeModel::Refined(const std::vector<Row>& rows) const {
  std::vector<std::vector<double>> x;
  std::vector<double> y;
  for (const Row& row : rows) {
    const double a = DeviceTime(row);
    const double b = StorageTime(row);
    const double time = std::max(Join(a, b), 1e-9);
    const double error = std::abs(time / row.step_ms - 1.0);
    const double weight = 1.0 / std::hypot(1.0, error / kUsualError) / row.step_ms;
    std::vector<double> terms;
    for (const double term : row.device) terms.push_back(weight * term * std::pow(a / time, kSharpness - 1));
    for (const double term : row.storage) terms.push_back(weight * term * std::pow(b / time, kSharpness - 1));
    x.push_back(std::move(terms));
    y.push_back(weight * row.step_ms);
  }
  return NonNegativeLeastSquares(x, y, kRidge);
}

// What hardly shows in the samples may get any weight, where the changes are far from what they are here:
// only steps after which the samples are explained better are taken, shorter ones where the first does not.
bool TimeModel::Refine(const std::vector<Row>& rows) {
  const std::vector<double> before = weights_;
  const std::vector<double> refined = Refined(rows);
  const double loss = Loss(rows);
  for (double step = 0.5; step > 0.01; step /= 2) {
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] = before[i] + step * (refined[i] - before[i]);
    if (Loss(rows) < loss) return true;
  }
  weights_ = before;
  return false;
}

Result<TimeModel> TimeModel::Fit(const std::vector<StepSample>& samples, const StorageProfile& storage) {
  if (samples.size() < kFewestSamples) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("too few steps were measured to predict others from: {}, and {} are needed",
                              samples.size(), kFewestSamples));
  }
  TimeModel model;
  model.storage_ = StorageModel(storage);
  for (const StepSample& sample : samples) model.batches_.push_back(sample.point.batch);
  std::sort(model.batches_.begin(), model.batches_.end());
  model.batches_.erase(std::unique(model.batches_.begin(), model.batches_.end()), model.batches_.end());
  std::vector<Row> rows;
  std::vector<std::vector<double>> x;
  for (const StepSample& sample : samples) {
    rows.push_back(model.RowOf(sample));
    x.push_back(rows.back().device);
    for (double& term : x.back()) term /= sample.step_ms;
  }
  // To begin with flash takes what its rates say, and the device all of the time.
  model.weights_ = NonNegativeLeastSquares(x, std::vector<double>(x.size(), 1.0), kRidge);
  model.weights_.resize(model.weights_.size() + kStorageTerms);
  model.weights_[model.weights_.size() - kStorageTerms] = 1.0;
  for (int round = 0; round < kRounds && model.Refine(rows); ++round) {
  }
  const auto [shortest, longest] =
      std::minmax_element(samples.begin(), samples.end(),
                          [](const StepSample& a, const StepSample& b) { return a.step_ms < b.step_ms; });
  model.least_ms_ = shortest->step_ms / kMostBeyond;
  model.most_ms_ = longest->step_ms * kMostBeyond;
  for (const StepSample& sample : samples) {
    const double error = std::abs(model.Predict(sample.point).step_ms / sample.step_ms - 1.0);
    model.max_error_ = std::max(model.max_error_, error);
    model.mean_error_ += error / static_cast<double>(samples.size());
  }
  return model;
}

double TimeModel::StepTime(const PredictedTime& time) const {
  return std::clamp(Join(time.model_ms + time.reading_ms, time.storage_ms), least_ms_, most_ms_);
}

PredictedTime TimeModel::PredictAt(const TimePoint& point, uint32_t sampled_batch) const {
  PredictedTime time;
  const size_t n_batches = batches_.size();
  for (size_t i = 0; i < n_batches; ++i) {
    if (batches_[i] == sampled_batch) time.model_ms += weights_[i];
  }
  const std::array<double, kTerms> terms = DeviceTerms(point);
  for (size_t i = 0; i < kTerms; ++i) {
    (i + kReadingTerms >= kTerms ? time.reading_ms : time.model_ms) += weights_[n_batches + i] * terms[i];
  }
  const std::array<double, kStorageTerms> storage = {storage_.Milliseconds(point), point.loads / 1e3,
                                                     Fetches(point) / 1e2};
  for (size_t i = 0; i < kStorageTerms; ++i) {
    time.storage_ms += weights_[n_batches + kTerms + i] * storage[i];
  }
  time.step_ms = StepTime(time);
  return time;
}

PredictedTime TimeModel::Predict(const TimePoint& point) const {
  const auto above = std::lower_bound(batches_.begin(), batches_.end(), point.batch);
  if (above == batches_.end()) return PredictAt(point, batches_.back());
  if (*above == point.batch || above == batches_.begin()) return PredictAt(point, *above);
  const double low = *(above - 1);
  const double share = (point.batch - low) / (*above - low);
  PredictedTime time = PredictAt(point, *above);
  const PredictedTime below = PredictAt(point, *(above - 1));
  time.model_ms = share * time.model_ms + (1 - share) * below.model_ms;
  time.step_ms = StepTime(time);
  return time;
}

}  // namespace kvrun::offline
