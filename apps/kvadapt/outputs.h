// Files of results: that they can be written, and are none of those that are read.
#pragma once

#include <string>
#include <vector>

namespace kvrun::cli {

// Before any long work. A UsageError where an output is an input, a file in a folder that is an input (but
// for what kvadapt has written there), or another output, whatever they are called, or is called -; a Failure
// where one cannot be written. Leaves nothing behind.
void CheckOutputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

// Beside the target, and renamed.
void WriteResult(const std::string& path, const std::string& text);

}  // namespace kvrun::cli
