// What a decode step of one sequence looked at: for measuring, not for running.
#pragma once

#include <cstdint>
#include <vector>

namespace kvrun {

struct StepProbe {
  bool wanted = false;  // of the next step
  // What the step's layers take as their input in place of what it computes, float [n_layers, n_embd]:
  // choices and queries are then those of another pass's states. Empty: nothing is replaced.
  std::vector<float> inputs;
  uint32_t position = 0;
  std::vector<std::vector<float>> queries;                 // [n_layers]: float [n_heads, head_dim], rotated
  std::vector<std::vector<std::vector<uint32_t>>> chosen;  // [n_layers, n_streams]: groups before the window
};

}  // namespace kvrun
