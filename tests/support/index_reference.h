// The scalar references of the operations on the index (runtime/device/device.h): plain loops that follow the
// contracts, sums in double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "shaders/shared/step_params.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {

// What a column of an entry's row stands for, without its scale.
float IndexValue(std::span<const uint32_t> index, const IndexShape& shape, uint32_t sequence, uint32_t entry,
                 uint32_t column);

// Entries of a sequence that ends with `position`, that belong to groups that can be chosen.
uint32_t ChoosableEntriesReference(uint32_t position, uint32_t window_tokens, uint32_t group_tokens);

struct ScoreReferenceArgs {
  AttentionReferenceArgs attention;   // norms: q_norm
  std::span<const float> query;       // [n_tokens, n_heads * head_dim]
  std::span<const float> query_side;  // [n_kv_heads * head_dim, rank]
  std::span<const float> scales;      // [n_sequences, rank]
  std::span<const uint32_t> index;
  IndexShape shape;
  HeadReduction reduction = HeadReduction::kSoftmax;
  uint32_t window_tokens = 0;
};

struct GroupScores {
  std::vector<double> scores;  // of every group that can be chosen
  // The largest sum of magnitudes of an entry's products, of those added up in one score before any softmax:
  // what errors of a score are proportional to.
  double magnitude = 0.0;
};

// Lists [n_tokens, kPerKvHead ? n_kv_heads : 1].
std::vector<GroupScores> ScoreGroupsReference(const ScoreReferenceArgs& args);

// The n_chosen groups with the largest scores, the lower of equals, the first n_pinned among them; ascending.
std::vector<uint32_t> SelectGroupsReference(std::span<const float> scores, uint32_t n_pinned,
                                            uint32_t n_chosen);

// [n_rows, rank]: row . key_side - bias.
std::vector<double> ProjectReference(std::span<const float> rows, uint32_t n_dims,
                                     std::span<const float> key_side, std::span<const float> bias);

// What is added to GramArgs::sums: [dim + 1, dim].
std::vector<double> GramReference(const GramArgs& args, std::span<const float> rows);

}  // namespace kvrun::testing
