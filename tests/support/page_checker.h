// The pages README.md and docs/: whether what they and comments refer to is there, and whether they can be
// read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvrun::testing {

// One line for each of these below `root`:
// - a link of README.md, CONTRIBUTING.md, CHANGELOG.md or a page of docs/ to a file or a heading that is not
//   there (links to other hosts are not looked at);
// - a path of a page of docs/ in any file that is not there;
// - a name of a page in apps/, cmake/, examples/, offline/, platform/, runtime/ or shaders/ that is no path
//   from the root: what explains the code has to be in the repository (tests/ and scripts/ may name optional
//   data beside it);
// - a page of more lines than 300 (README.md: 150), and a line of its prose of
//   more than 120 columns (not of tables, code and pictures).
std::vector<std::string> PageViolations(const std::filesystem::path& root);

}  // namespace kvrun::testing
