// What host_bench times of scores and choice: shapes of models, depths, one stage and two.
#pragma once

#include <cstdint>

namespace kvrun::host {

void BenchScores(uint32_t n_threads);

}  // namespace kvrun::host
