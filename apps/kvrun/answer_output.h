// An answer on standard output, as it comes.
#pragma once

#include "apps/kvrun/generation.h"

namespace kvrun::cli {

// Continues sequence 0 and writes its text without a line end after it. What the model thinks is dimmed on a
// terminal with colours, and stands between "<think>" and "</think>" anywhere else; or it is left out.
Answer GenerateOnStdout(const Session& session, const GenerationOptions& generation, Reasoning reasoning,
                        bool shows_reasoning);

}  // namespace kvrun::cli
