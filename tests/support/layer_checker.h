// Which folder may include which: the layers of docs/ARCHITECTURE.md as a table, and a check of a source
// tree.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvrun::testing {

// One line for each include that points upward, sideways or out of the tree, for each mention of Vulkan
// where there must be none, and for each comparison with the name of a KV method outside their table (code
// asks for a method's traits instead; offline/ may compare). Looks at platform/, runtime/, offline/ and apps/
// below `root`.
std::vector<std::string> LayerViolations(const std::filesystem::path& root);

}  // namespace kvrun::testing
