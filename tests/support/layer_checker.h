// Which folder may include which: the layers of docs/ARCHITECTURE.md as a table, and a check of a source
// tree.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvrun::testing {

// One line for each include that points upward, sideways or out of the tree, and for each mention of Vulkan
// where there must be none. Looks at platform/, runtime/, offline/ and apps/ below `root`.
std::vector<std::string> LayerViolations(const std::filesystem::path& root);

}  // namespace kvrun::testing
