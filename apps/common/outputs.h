// Files of results: that they can be written, and take the place of nothing that a person would miss.
#pragma once

#include <string>
#include <vector>

#include "apps/common/api.h"
#include "apps/common/options.h"
#include "apps/common/shared_options.h"

namespace kvrun::cli {

struct OutputFiles {
  std::vector<std::string> results = {};  // that the person named
  std::vector<std::string> working = {};  // beside them: whose these are is checked by who writes them
  std::vector<std::string> inputs = {};   // files, folders, - (standard input)
  bool force = false;                     // --force: a result may take the place of a file of anybody
};

// --force, of a command with outputs.
void AddForceOption(OptionSet* set, bool* force);

// The files that the model consists of, and those that the options name: a config, an adapter.
std::vector<std::string> InputFiles(const Model& model, const SharedOptions& shared);

// Before any long work. A UsageError where an output is an input, a text in a folder that is an input, or
// another output, by whatever name or link; where it is called -; where a result would replace a file that is
// not empty and does not begin as kvrun's own results do, without --force. A Failure where one cannot be
// written. Devices are written as they are, in whatever they are an output or input. Leaves nothing behind.
void CheckOutputs(const OutputFiles& files);

// Beside the target, and renamed.
void WriteResult(const std::string& path, const std::string& text);

}  // namespace kvrun::cli
