// Options of a subcommand. Each is bound to a variable and can also be given as an environment variable:
// --top-k is KVRUN_TOP_K. What is on the command line wins. Commands have options of one name and different
// meaning (--batch is a file, or numbers), of which the variable is one: messages name the command with it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/common/help.h"

// CLI11's headers take seconds to compile: only options.cc and program.cc include them.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvrun::cli {

// Of an option's or a variable's text, as OptionSet::Number takes it ("8k" is 8192); else a UsageError.
uint32_t ParseCountOption(const std::string& source, const std::string& text, uint32_t least, uint32_t most);
uint64_t ParseSeed(const std::string& source, const std::string& text);

class OptionSet {
 public:
  // `description` is one line without a full stop.
  OptionSet(CLI::App* program, const std::string& command, const std::string& description);
  OptionSet(const OptionSet&) = delete;  // the program's parser points to it
  OptionSet& operator=(const OptionSet&) = delete;

  // Where `--help` shows the options that are added from here on, until the next call.
  void Group(HelpGroup group) { group_ = group; }
  // Values that completion offers for the option that was added last, where its type does not name them.
  void Offer(const std::vector<std::string>& choices);
  // The option that was added last is taken, and shown nowhere.
  void Hide();
  // What `--help` shows.
  void SetHelpTopic(HelpTopic topic) { help_topic_ = topic; }
  // Shown by `--help`; `line` is a whole command.
  void AddExample(const std::string& line, const std::string& what);

  // `names` as CLI11 has them, such as "-m,--model"; one of them must be long.
  void Text(const std::string& names, std::string* value, const std::string& kind, const std::string& help);
  // The same of what may not be empty, as the name of a file.
  void NonEmptyText(const std::string& names, std::string* value, const std::string& kind,
                    const std::string& help);
  // May be given several times on the command line; the environment gives one.
  void TextList(const std::string& names, std::vector<std::string>* values, const std::string& kind,
                const std::string& help);
  void Choice(const std::string& names, std::string* value, const std::vector<std::string>& allowed,
              const std::string& help);
  void Number(const std::string& names, uint32_t* value, uint32_t least, uint32_t most,
              const std::string& help);
  void Number(const std::string& names, uint64_t* value, const std::string& help);
  void Number(const std::string& names, float* value, float least, float most, const std::string& help);
  void Flag(const std::string& names, bool* value, const std::string& help);
  // Handed over by Resolve(), with the option ("--kv-budget") or variable that they are from; what is wrong
  // with them is thrown as a UsageError.
  void Checked(const std::string& names, const std::string& kind, const std::string& help,
               std::function<void(const std::string& source, const std::string& value)> set);
  void CheckedFlag(const std::string& names, const std::string& help,
                   std::function<void(const std::string& source, bool value)> set);

  // What was called `former`, as "--quality-floor", is called `name` now: a UsageError says so. Not in
  // --help.
  void Renamed(const std::string& former, const std::string& name);

  // Two options, as "--batch", of which the command line may have one only.
  void Exclude(const std::string& one, const std::string& other);

  const std::string& command() const { return info_.name; }
  // All that `--help` shows.
  CommandInfo Describe() const;
  // Once the command line is parsed: whether it names this subcommand, or has this option ("--batch").
  bool Chosen() const;
  bool OnCommandLine(const std::string& name) const;
  // The same, or whether its environment variable gives it.
  bool Given(const std::string& name) const;

  // Sets the variables, once the command line is parsed. Throws UsageError, which names the option or the
  // variable, when all others are set: --json then says how to report it. An environment variable is ignored
  // if the command line has an option that excludes it.
  void Resolve() const;
  // " (the environment variable KVRUN_FILE sets --file of kvrun run)", where the message of a failure has an
  // option that an environment variable set, or a text that it holds; else empty.
  std::string VariablesIn(const std::string& message) const;

 private:
  using Setter = std::function<void(const std::string& name, const std::vector<std::string>& values)>;
  struct Binding {
    CLI::Option* option;
    std::string variable;
    Setter set;
    bool is_text = false;  // as it is: a path, a prompt
  };

  void Resolve(const Binding& binding) const;
  static const char* ValueOfVariable(const Binding& binding);  // null: none that counts
  std::string OfCommand(const Binding& binding) const;
  static bool IsMeant(const Binding& binding, const OptionInfo& info, const std::string& message);
  void Add(const std::string& names, const std::string& kind, const std::string& help, Setter set);
  void Bind(CLI::Option* option, const std::string& kind, Setter set);

  CommandInfo info_;
  HelpGroup group_ = HelpGroup::kInput;
  HelpTopic help_topic_ = HelpTopic::kUsual;
  CLI::App* app_;
  std::vector<Binding> bindings_;  // as many as info_.options
};

}  // namespace kvrun::cli
