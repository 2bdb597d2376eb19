#include "tests/support/engine_fixture.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "platform/base/check.h"
#include "runtime/engine/forward/create_forward_pass.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

// log(sum(exp(row))).
double LogSumExp(std::span<const float> row) {
  const double maximum = *std::max_element(row.begin(), row.end());
  double sum = 0.0;
  for (const float value : row) sum += std::exp(value - maximum);
  return maximum + std::log(sum);
}

// Null where it is not set, or empty.
const char* Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

size_t ArgMax(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace

OpenDeviceOptions DeviceOptionsHere() {
  OpenDeviceOptions options;
  if (const char* name = Variable("KVRUN_DEVICE"); name != nullptr) options.device = name;
  if (const char* threads = Variable("KVRUN_THREADS"); threads != nullptr) {
    const std::string_view text = threads;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), options.n_threads);
    KVRUN_CHECK(error == std::errc() && end == text.data() + text.size());
  }
  options.exact_activations = true;
  if (const char* exact = Variable("KVRUN_EXACT_ACTIVATIONS"); exact != nullptr) {
    const std::string_view text = exact;
    KVRUN_CHECK(text == "0" || text == "1");
    options.exact_activations = text == "1";
  }
  return options;
}

kvrun_engine_options EngineOptionsHere() {
  const OpenDeviceOptions here = DeviceOptionsHere();
  kvrun_engine_options options;
  kvrun_engine_options_init(&options);
  options.device = Variable("KVRUN_DEVICE");
  options.n_threads = here.n_threads;
  options.exact_activations = here.exact_activations ? 1 : 0;
  return options;
}

Device* SharedDevice() {
  static const std::unique_ptr<Device> device = []() -> std::unique_ptr<Device> {
    Result<std::unique_ptr<Device>> opened = OpenDevice(DeviceOptionsHere());
    if (!opened.ok()) {
      std::fprintf(stderr, "no device: %s\n", opened.status().message().c_str());
      return nullptr;
    }
    return std::move(opened).value();
  }();
  return device.get();
}

LoadedModel LoadModelOrDie(const std::string& path, Device* device) {
  LoadedModel loaded;
  loaded.device = device != nullptr ? device : SharedDevice();
  loaded.model = OrDie(OpenModel(path));
  loaded.weights = OrDie(LoadDeviceWeights(*loaded.model, *loaded.device, {}));
  return loaded;
}

std::unique_ptr<ForwardPass> LoadedModel::NewPass(const ForwardPassOptions& options) const {
  return OrDie(CreateForwardPass(*model, weights, *device, options));
}

std::vector<float> LogitsOf(ForwardPass& pass, std::span<const int> ids, size_t last, uint32_t sequence) {
  std::vector<float> logits(last * pass.n_vocab());
  size_t written = 0;
  for (size_t begin = 0; begin < ids.size(); begin += pass.max_rows()) {
    const size_t n = std::min<size_t>(pass.max_rows(), ids.size() - begin);
    ForwardStep rows;
    for (size_t i = 0; i < n; ++i)
      rows.Add(n == 1 ? SpanKind::kDecode : SpanKind::kPrompt,
               {ids[begin + i], static_cast<uint32_t>(begin + i), sequence});
    RunOrDie(pass.Run(rows, {}, {}));
    std::vector<uint32_t> wanted;
    for (size_t i = 0; i < n; ++i) {
      if (begin + i + last >= ids.size()) wanted.push_back(static_cast<uint32_t>(i));
    }
    for (size_t at = 0; at < wanted.size(); at += pass.max_output_rows()) {
      const size_t count = std::min<size_t>(pass.max_output_rows(), wanted.size() - at);
      RunOrDie(pass.MoreLogits(std::span(wanted).subspan(at, count),
                               std::span(logits).subspan(written * pass.n_vocab(), count * pass.n_vocab())));
      written += count;
    }
  }
  KVRUN_CHECK(written == last);
  return logits;
}

LogitsDifference CompareLogits(std::span<const float> reference, std::span<const float> ours,
                               size_t n_vocab) {
  KVRUN_CHECK(reference.size() == ours.size() && reference.size() % n_vocab == 0);
  LogitsDifference difference;
  const size_t n_rows = reference.size() / n_vocab;
  for (size_t r = 0; r < n_rows; ++r) {
    const std::span<const float> a = reference.subspan(r * n_vocab, n_vocab);
    const std::span<const float> b = ours.subspan(r * n_vocab, n_vocab);
    const double log_a = LogSumExp(a);
    const double log_b = LogSumExp(b);
    double kl = 0.0;
    for (size_t i = 0; i < n_vocab; ++i) {
      const double gap = std::abs(static_cast<double>(a[i]) - b[i]);
      difference.max_absolute = std::isfinite(gap) ? std::max(difference.max_absolute, gap) : INFINITY;
      kl += std::exp(a[i] - log_a) * ((a[i] - log_a) - (b[i] - log_b));
    }
    difference.mean_kl += kl / static_cast<double>(n_rows);
    const size_t top = ArgMax(a);
    std::vector<float> rest(a.begin(), a.end());
    rest[top] = -INFINITY;
    const float margin = a[top] - *std::max_element(rest.begin(), rest.end());
    if (margin > 0.05F && ArgMax(b) != top) ++difference.wrong_top1;
  }
  return difference;
}

}  // namespace kvrun::testing
