// Where reference data of other runtimes lies (`../shared` beside the checkout); tests skip where it is
// absent.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::testing {

// ../shared/<relative>, or $KVRUN_SHARED_DIR/<relative>; nothing where it does not exist.
std::optional<std::string> SharedPath(std::string_view relative);
// The test model: $KVRUN_MODEL, else models/SmolLM2-135M-Instruct.Q4_1.gguf of the checkout if it was
// fetched.
std::optional<std::string> TestModelPath();

std::string ReadFileOrDie(const std::string& path);
std::vector<float> ReadFloats(const std::string& path);  // little-endian float32
std::vector<int> ReadIds(const std::string& path);       // whitespace-separated decimal ids

}  // namespace kvrun::testing
