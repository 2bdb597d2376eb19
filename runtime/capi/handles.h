// What the opaque handles of kvrun.h hold.
#pragma once

#include <memory>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/engine/session/session.h"
#include "runtime/include/kvrun/kvrun.h"
#include "runtime/model/model.h"

struct kvrun_model {
  std::unique_ptr<kvrun::Model> model;
};

struct kvrun_engine {
  std::unique_ptr<kvrun::Engine> engine;
  bool profile = false;
  bool exact_activations = false;
};

struct kvrun_session {
  kvrun::Engine* engine = nullptr;
  std::unique_ptr<kvrun::Session> session;
  bool profile = false;
  std::vector<kvrun::OperationTime> operations_before = {};  // totals when the statistics began
};
