// A pass's part in decode steps that passes share: a row of its first sequence.
#pragma once

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/forward_step.h"
#include "runtime/engine/pass/look_back.h"
#include "runtime/engine/pass/step_commands.h"

namespace kvrun {

class StepRecords;

class StepMember {
 public:
  virtual ~StepMember() = default;

  virtual Device& device() = 0;
  virtual StepCommands& commands() = 0;
  virtual LookBack& look_back() = 0;
  // Where its KV is kept in records, which are served while the step is computed; else null.
  virtual StepRecords* records() = 0;

  // What the row needs is there, and its inputs are written. May change look_back's version.
  virtual Status Begin(const StepRow& row) = 0;
  // Nothing has failed, and the step begins to be computed: what it goes on from is no more.
  virtual void Submit() {}
  // The step was computed. Without that, or after an error, the row was not given: ForwardPass::Run says
  // what that means.
  virtual Status End(const StepRow& row) = 0;
};

}  // namespace kvrun
