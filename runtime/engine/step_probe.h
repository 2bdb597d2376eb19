// What a decode step of one sequence looked at: for measuring, not for running.
#pragma once

#include <cstdint>
#include <vector>

namespace kvrun {

struct StepProbe {
  bool wanted = false;  // of the next step
  uint32_t position = 0;
  std::vector<std::vector<float>> queries;                 // [n_layers]: float [n_heads, head_dim], rotated
  std::vector<std::vector<std::vector<uint32_t>>> chosen;  // [n_layers, n_streams]: groups before the window
};

}  // namespace kvrun
