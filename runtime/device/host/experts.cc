// Which experts a token uses.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "platform/base/check.h"
#include "runtime/device/host/operations.h"

namespace kvrun::host {
namespace {

constexpr uint32_t kMostUsed = 32;
// Tokens that are worth a second thread.
constexpr size_t kChooseGrain = 16;

// The n_used largest of a row, the largest first, the lower of equals; and their softmax. Where a logit is
// no number, weights are none, and ids are experts all the same.
void ChooseOfRow(const float* logits, uint32_t n_experts, uint32_t n_used, uint32_t* ids, float* weights) {
  float best[kMostUsed] = {};
  uint32_t n = 0;
  bool has_nan = false;
  for (uint32_t expert = 0; expert < n_experts; ++expert) {
    float logit = logits[expert];
    if (std::isnan(logit)) {
      has_nan = true;
      logit = -std::numeric_limits<float>::infinity();
    }
    if (n == n_used && !(logit > best[n - 1])) continue;
    uint32_t at = n < n_used ? n++ : n - 1;
    for (; at > 0 && logit > best[at - 1]; --at) {
      best[at] = best[at - 1];
      ids[at] = ids[at - 1];
    }
    best[at] = logit;
    ids[at] = expert;
  }
  float sum = 0.0F;
  for (uint32_t j = 0; j < n_used; ++j) sum += weights[j] = std::exp(best[j] - best[0]);
  const float factor = has_nan ? std::numeric_limits<float>::quiet_NaN() : 1.0F / sum;
  for (uint32_t j = 0; j < n_used; ++j) weights[j] *= factor;
}

}  // namespace

void ChooseExperts(ThreadPool& pool, const ChooseExpertsArgs& args) {
  KVRUN_CHECK(args.n_used >= 1 && args.n_used <= std::min(args.n_experts, kMostUsed));
  const auto* logits = Data<float>(args.logits);
  auto* ids = Data<uint32_t>(args.ids);
  auto* weights = Data<float>(args.weights);
  pool.ParallelFor(args.n_tokens, kChooseGrain, [&](size_t begin, size_t end, uint32_t) {
    for (size_t t = begin; t < end; ++t) {
      ChooseOfRow(logits + t * args.n_experts, args.n_experts, args.n_used, ids + t * args.n_used,
                  weights + t * args.n_used);
    }
  });
}

}  // namespace kvrun::host
