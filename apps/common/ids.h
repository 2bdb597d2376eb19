// Token ids, of a file of them or of a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvrun::cli {

// Separated by white space ("-": standard input); all below vocab_size, at least one.
std::vector<int32_t> ReadIds(const std::string& path, uint32_t vocab_size);

}  // namespace kvrun::cli
