#include "tests/support/mass_reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/scalar_reference.h"

namespace kvrun::testing {
namespace {

constexpr double kUnseen = -1e30F;

// What a row gives to an entry: of the weights of a KV head's query heads, to the power of `exponent`.
double GiftOf(const MassForm& form, std::span<const double> weights, uint32_t exponent) {
  double sum = 0.0;
  double largest = 0.0;
  for (const double weight : weights) {
    const double power = std::pow(weight, exponent);
    sum += power;
    largest = std::max(largest, power);
  }
  return form.heads == MassForm::Heads::kMean ? sum / static_cast<double>(weights.size()) : largest;
}

void Join(const MassForm& form, double given, double* mass) {
  switch (form.rows) {
    case MassForm::Rows::kAdd: *mass += given; break;
    case MassForm::Rows::kLargest: *mass = std::max(*mass, given); break;
    case MassForm::Rows::kReplace: *mass = given; break;
  }
}

// Of a row and a head to entry `entry` of the tile; the row sees it.
double ScoreOf(const RowMassReferenceArgs& args, size_t row, uint32_t head, uint32_t entry) {
  const KvShape& kv = args.kv_shape;
  const uint32_t kv_head = head / (args.n_heads / kv.n_kv_heads);
  const size_t query = (row * args.n_heads + head) * kv.head_dim;
  const size_t key = (size_t{2} * kv_head * kv.n_ctx + entry) * kv.head_dim;
  double score = 0.0;
  for (uint32_t i = 0; i < kv.head_dim; ++i) score += double{args.queries[query + i]} * args.kv[key + i];
  return ScoreReference(score, kv.head_dim, args.score_scale, args.score_cap);
}

bool Sees(const RowMassReferenceArgs& args, size_t row, uint32_t entry) {
  return args.tile_begin + entry <= args.rows[row].position;
}

}  // namespace

void SlotMassReference(const SlotReferenceArgs& args, uint32_t n_sequences,
                       std::span<const RowWeights> row_weights, uint32_t nth, const MassForm& form,
                       std::span<double> mass) {
  const SlotShape& shape = args.sources[nth].shape;
  const uint32_t group = args.n_heads / args.n_kv_heads;
  const size_t list_entries = size_t{shape.n_slots} * shape.record.group_tokens;
  const size_t n_lists = shape.is_shared ? 1 : size_t{n_sequences} * args.n_kv_heads;
  for (size_t t = 0; t < args.tokens.size(); ++t) {
    for (uint32_t kv_head = 0; kv_head < args.n_kv_heads; ++kv_head) {
      const auto heads = row_weights.subspan(t * args.n_heads + size_t{kv_head} * group, group);
      const size_t list = shape.is_shared ? 0 : size_t{args.tokens[t].sequence} * args.n_kv_heads + kv_head;
      for (size_t e = 0; e < heads[0].entries.size(); ++e) {
        const SlotEntry& at = heads[0].entries[e];
        if (at.source != nth) continue;
        std::vector<double> weights;
        for (const RowWeights& head : heads) weights.push_back(head.weights[e]);
        for (uint32_t moment = 0; moment < form.n_moments; ++moment) {
          Join(form, GiftOf(form, weights, moment + 1),
               &mass[(moment * n_lists + list) * list_entries + size_t{at.slot} * shape.record.group_tokens +
                     at.entry]);
        }
      }
    }
  }
}

void SumWeightsReference(const RowMassReferenceArgs& args, bool is_first, std::span<double> sums) {
  for (size_t row = 0; row < args.rows.size(); ++row) {
    for (uint32_t head = 0; head < args.n_heads; ++head) {
      double* sum = &sums[(row * args.n_heads + head) * 2];
      if (is_first) {
        sum[0] = kUnseen;
        sum[1] = 0.0;
      }
      for (uint32_t entry = 0; entry < args.n_entries && Sees(args, row, entry); ++entry) {
        const double score = ScoreOf(args, row, head, entry);
        const double largest = std::max(sum[0], score);
        sum[1] = sum[1] * std::exp(sum[0] - largest) + std::exp(score - largest);
        sum[0] = largest;
      }
    }
  }
}

void AttentionMassReference(const RowMassReferenceArgs& args, std::span<const double> sums,
                            const MassForm& form, uint32_t mass_stride, uint32_t mass_begin,
                            std::span<double> mass) {
  const uint32_t n_kv_heads = args.kv_shape.n_kv_heads;
  const uint32_t group = args.n_heads / n_kv_heads;
  for (size_t row = 0; row < args.rows.size(); ++row) {
    for (uint32_t kv_head = 0; kv_head < n_kv_heads; ++kv_head) {
      for (uint32_t entry = 0; entry < args.n_entries && Sees(args, row, entry); ++entry) {
        std::vector<double> weights;
        for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const double* sum = &sums[(row * args.n_heads + head) * 2];
          weights.push_back(std::exp(ScoreOf(args, row, head, entry) - sum[0]) / sum[1]);
        }
        for (uint32_t moment = 0; moment < form.n_moments; ++moment) {
          Join(form, GiftOf(form, weights, moment + 1),
               &mass[(size_t{moment} * n_kv_heads + kv_head) * mass_stride + mass_begin + entry]);
        }
      }
    }
  }
}

}  // namespace kvrun::testing
