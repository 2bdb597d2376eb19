// Documents that are kept without a name (run --keep), so that the next question about one reads the question
// alone. Each is a session of the user's folder, under a key of the user's own, named after how its text
// begins: a text that differs later is the same document, of which what follows the difference is read again.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "apps/common/api.h"
#include "apps/common/shared_options.h"

namespace kvrun::cli {

// The session for a prompt; empty: it is too short to be worth one. Prompts of another model, or with options
// that may store something else, have others.
std::string DocumentSession(const SharedOptions& shared, std::span<const int32_t> ids);

// The least recently used documents go, until no more than so many bytes are left. That of this name stays.
// Answers whether there were others.
bool PruneDocuments(uint64_t most_bytes, const std::string& name);

}  // namespace kvrun::cli
