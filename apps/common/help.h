// What programs, commands and options there are, as plain data: `--help`, manual pages and completion are
// made of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvrun::cli {

// In the order in which `--help` shows them. A group without options is not shown.
enum class HelpGroup {
  kInput,      // the model and what it reads
  kPrompt,     // the same where it is a prompt
  kWork,       // what is measured, searched or checked
  kSampling,   // and where an answer ends
  kDevice,     // what computes
  kKv,         // the context and its KV cache, for everybody
  kKvExperts,  // single parameters of a KV method: shown by `--help kv` alone
  kOutput,     // results, reports, messages
};

// "Sampling".
const char* HelpGroupTitle(HelpGroup group);

struct OptionInfo {
  std::vector<std::string> names;  // "-m", "--model"
  std::string positional;  // "ADAPTER": what the value is called where it stands without a name; may be empty
  std::string kind;        // "FILE", "FOLDER", "DEVICE", "N", "auto|always|never"; empty: a flag
  std::vector<std::string> choices;  // values to offer; where a value is free, those that are usual
  std::string help;
  std::string variable;  // "KVRUN_MODEL"
  HelpGroup group = HelpGroup::kInput;
  bool is_shown = true;  // false: taken all the same, but not for those who use this command

  bool is_flag() const { return kind.empty(); }
};

struct Example {
  std::string line;  // "kvrun run -m model.gguf -p Hello"
  std::string what;  // what it does, a clause without a full stop
};

struct CommandInfo {
  std::string name;
  std::string description;  // one line
  std::vector<OptionInfo> options;
  std::vector<Example> examples;
};

// Of help texts: the terminal's width (COLUMNS, else what the terminal of standard output says, else 80), at
// most 100 and at least 40.
size_t HelpWidth();

// What of a command its help shows: what most want to know, all of the KV cache, or everything.
enum class HelpTopic : uint8_t { kUsual, kKv, kAll };

// What `PROGRAM COMMAND --help [kv|all]` and `PROGRAM --help` print.
std::string CommandHelp(const std::string& program, const CommandInfo& command, HelpTopic topic,
                        size_t width);
std::string ProgramHelp(const std::string& program, const std::string& description,
                        std::span<const CommandInfo> commands, std::span<const Example> examples,
                        size_t width);

}  // namespace kvrun::cli
