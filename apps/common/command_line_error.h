// What is wrong with a command line, in words of ours: CLI11's own name neither the word nor what to do.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/common/help.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace kvrun::cli {

struct CommandLineError {
  std::string message;
  std::string command;  // whose --help tells more; empty: the program's
};

// `error` is what program.parse() threw, and not a call for help.
CommandLineError ExplainParseError(const CLI::App& program, std::span<const CommandInfo> commands,
                                   const CLI::ParseError& error);

// The known word that was probably meant; empty: none is like it.
std::string NearestWord(const std::string& word, const std::vector<std::string>& known);

}  // namespace kvrun::cli
