// What of a decode step looks back, by rows that go together: attention with the choice before it, and what
// layers without growing KV keep. All else of a step multiplies with weights, and is computed of the rows of
// several such together (StepRecorder).
#pragma once

#include <cstdint>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/step_commands.h"

namespace kvrun {

// How a step is divided into lists, which is alike for all that share one.
struct StepForm {
  bool is_one_list = false;  // nothing in it waits for the host
  bool scores = false;       // the device chooses, by the scores of an index
  bool has_store = false;    // what is chosen is read from flash
  uint32_t lookahead = 0;    // KvMethod::lookahead; at most 1

  bool operator==(const StepForm&) const = default;
};

// Layers are counted that keep growing KV, but for states(), which has the model's others.
class LookBack {
 public:
  virtual ~LookBack() = default;

  virtual StepForm form() const = 0;
  // What it names when it records changes whenever this does.
  virtual uint64_t version() const = 0;
  // Inputs and what looking back brings lie in its own() place.
  virtual const StepCommands& commands() const = 0;
  virtual const LayerStates& states() const = 0;

  // From own().qkv to own().attended.
  virtual Status RecordAttention(CommandList& list, uint32_t layer, uint32_t n_rows) = 0;
  // Where it scores: float [n_rows, q_dim], of RecordChoice. Else null.
  virtual Buffer* query() = 0;
  virtual Status RecordChoice(CommandList& list, uint32_t layer, uint32_t n_rows) = 0;
  // Before a layer that is not the first: hidden states may be replaced by what was asked for (StepProbe).
  virtual Status RecordInput(CommandList& /*list*/, uint32_t /*layer*/) { return Status::Ok(); }
};

}  // namespace kvrun
