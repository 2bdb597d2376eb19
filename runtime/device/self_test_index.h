// Self-tests of the operations on the index: each against a small computation here, on any device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

struct ScoreCase {
  KvType type = KvType::kInt4;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  HeadReduction reduction = HeadReduction::kSoftmax;
  uint32_t rows_per_group = 0;  // as in IndexShape
  QueryForm query_form = QueryForm::kProjected;
  ChoiceRule rule = {};  // by weight: without a buffer, groups weigh 0 to 4
};

// Without buffers: what plans need.
ScoreArgs ScoreArgsOf(const ScoreCase& c);

// Where a device leaves the scores of a list's groups in ScoreArgs::scratch. A row is a projected query, of
// one head or of several added up; each list adds up n_rows / n_lists of them. With two stages they are those
// of the candidates, one after another, and the candidates are there, ascending, as words.
struct ScorePlace {
  uint32_t n_rows = 0;
  uint32_t n_lists = 0;
  size_t scores_begin = 0;
  size_t scores_stride = 0;
  size_t scratch_floats = 0;
  size_t candidates_begin = 0;
};

// On success a line of detail, else what is wrong. tolerance: of scores, as a part of the largest.
Result<std::string> CheckScore(Device& device, const ScoreCase& c, const ScorePlace& place,
                               double tolerance = 2e-3);
Result<std::string> CheckProjectKeys(Device& device, KvType type);
Result<std::string> CheckGram(Device& device, uint32_t dim);

}  // namespace kvrun
