#include "apps/common/help.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace kvrun::cli {
namespace {

constexpr size_t kUsualWidth = 80;
constexpr size_t kLeastWidth = 40;
constexpr size_t kMostWidth = 100;
// Where an option's text begins; on a narrow terminal the texts would have no room there.
constexpr size_t kTextColumn = 28;
constexpr size_t kNarrowTextColumn = 10;
constexpr size_t kNarrowWidth = 60;

constexpr const char* kVariables =
    "Every option is also an environment variable: --top-k is KVRUN_TOP_K. The command line takes precedence "
    "over it, and an empty variable counts as not set.";
constexpr const char* kNumbers =
    "Numbers of tokens may end in k, which is 1,024 (8k is 8192); sizes of memory in K, M or G, powers of "
    "1,024.";
constexpr const char* kExitCodes = "0 done, 1 failed, 2 wrong usage, 130 interrupted.";

// 0: no number.
size_t NumberIn(const char* text) {
  size_t number = 0;
  if (text == nullptr) return 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, number);
  return error == std::errc() && rest == end ? number : 0;
}

size_t TerminalWidth() {
  if (const size_t columns = NumberIn(std::getenv("COLUMNS")); columns != 0) return columns;
  winsize size = {};
  if (::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0)
    return size.ws_col;
  return kUsualWidth;
}

// The words of `text` from column `column` on; the first line is `line`, which may be longer than that.
std::string Wrapped(std::string line, size_t column, std::string_view text, size_t width) {
  std::string wrapped;
  const std::string indent(column, ' ');
  if (line.size() + 2 > column && column > 0 && !line.empty()) {
    wrapped = line + "\n";
    line = indent;
  }
  line.resize(std::max(line.size(), column), ' ');
  bool is_first = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (!is_first && line.size() + 1 + word.size() > width) {
      wrapped += line + "\n";
      line = indent;
      is_first = true;
    }
    line += fmt::format("{}{}", is_first ? "" : " ", word);
    is_first = false;
  }
  return wrapped + line + "\n";
}

std::string Paragraph(std::string_view text, size_t width) { return Wrapped("", 0, text, width); }

std::string NamesOf(const OptionInfo& option) {
  std::string names;
  for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + name;
  // Long names stand below each other.
  const bool has_short = !option.names.empty() && !option.names.front().starts_with("--");
  const std::string indent = has_short || names.empty() ? "" : "    ";
  const std::string named = option.kind.empty() ? names : names + " " + option.kind;
  return "  " + indent + (option.positional.empty() ? named : option.positional + ", " + named);
}

std::string Entry(const std::string& left, const std::string& text, size_t width) {
  return Wrapped(left, width < kNarrowWidth ? kNarrowTextColumn : kTextColumn, text, width);
}

// A command, which can be copied from the help: where it is too long for the terminal, a backslash ends the
// line.
std::string CommandLines(std::string_view command, size_t width) {
  std::string lines;
  std::string line = "  ";
  bool is_quoted = false;
  for (size_t start = 0; start < command.size();) {
    size_t end = start;
    for (; end < command.size() && (is_quoted || command[end] != ' '); ++end) {
      if (command[end] == '"') is_quoted = !is_quoted;
    }
    const std::string_view word = command.substr(start, end - start);
    const bool is_last = end == command.size();
    if (start > 0 && line.size() + 1 + word.size() + (is_last ? 0 : 2) > width) {
      lines += line + " \\\n";
      line = "     ";
    }
    line += fmt::format("{}{}", start == 0 ? "" : " ", word);
    start = end + 1;
  }
  return lines + line + "\n";
}

std::string Examples(std::span<const Example> examples, size_t width) {
  if (examples.empty()) return "";
  std::string text = "\nExamples:\n";
  for (const Example& example : examples)
    text += CommandLines(example.line, width) + Wrapped("", 6, example.what, width);
  return text;
}

bool IsOfTopic(HelpGroup group, HelpTopic topic) {
  if (topic == HelpTopic::kKv) return group == HelpGroup::kKv || group == HelpGroup::kKvExperts;
  return topic == HelpTopic::kAll || group != HelpGroup::kKvExperts;
}

size_t CountExperts(const CommandInfo& command) {
  return static_cast<size_t>(
      std::count_if(command.options.begin(), command.options.end(),
                    [](const OptionInfo& option) { return option.group == HelpGroup::kKvExperts; }));
}

}  // namespace

const char* HelpGroupTitle(HelpGroup group) {
  switch (group) {
    case HelpGroup::kInput: return "Model and input";
    case HelpGroup::kPrompt: return "Model and prompt";
    case HelpGroup::kWork: return "What is done";
    case HelpGroup::kSampling: return "Sampling";
    case HelpGroup::kDevice: return "Device";
    case HelpGroup::kKv: return "Context and KV cache";
    case HelpGroup::kKvExperts: return "KV cache, for experts";
    case HelpGroup::kOutput: return "Output";
  }
  return "";
}

size_t HelpWidth() { return std::clamp(TerminalWidth(), kLeastWidth, kMostWidth); }

std::string CommandHelp(const std::string& program, const CommandInfo& command, HelpTopic topic,
                        size_t width) {
  std::string text = Paragraph(command.description + ".", width);
  std::string usage = fmt::format("Usage: {} {}", program, command.name);
  for (const OptionInfo& option : command.options) {
    if (!option.positional.empty()) usage += " " + option.positional;
  }
  text += "\n" + usage + (command.options.empty() ? "" : " [OPTIONS]") + "\n";
  for (int at = 0; at <= static_cast<int>(HelpGroup::kOutput); ++at) {
    const auto group = static_cast<HelpGroup>(at);
    if (!IsOfTopic(group, topic)) continue;
    std::string entries;
    for (const OptionInfo& option : command.options) {
      if (option.group == group) entries += Entry(NamesOf(option), option.help, width);
    }
    if (!entries.empty()) text += fmt::format("\n{}:\n{}", HelpGroupTitle(group), entries);
  }
  text += "\nHelp:\n" + Entry("  -h, --help", "this help", width);
  if (const size_t n_more = CountExperts(command); topic == HelpTopic::kUsual && n_more > 0) {
    text += Entry("      --help kv", fmt::format("of the KV cache, with {} options more for experts", n_more),
                  width);
  }
  if (topic != HelpTopic::kKv) text += Examples(command.examples, width);
  const bool has_context =
      std::any_of(command.options.begin(), command.options.end(), [](const OptionInfo& option) {
        return option.group == HelpGroup::kKv || option.group == HelpGroup::kWork;
      });
  if (!command.options.empty()) text += "\n";
  if (has_context) text += Paragraph(kNumbers, width);
  if (!command.options.empty()) text += Paragraph(kVariables, width);
  return text;
}

std::string ProgramHelp(const std::string& program, const std::string& description,
                        std::span<const CommandInfo> commands, std::span<const Example> examples,
                        size_t width) {
  std::string text = Paragraph(description, width);
  text += fmt::format("\nUsage: {} COMMAND [OPTIONS]\n\nCommands:\n", program);
  constexpr size_t kCommandColumn = 14;
  for (const CommandInfo& command : commands)
    text += Wrapped("  " + command.name, kCommandColumn, command.description, width);
  text += "\nOptions:\n";
  text +=
      Entry("  -h, --help", fmt::format("this help; `{} COMMAND --help` for a command's", program), width);
  text += Entry("      --version", "the program's version", width);
  text += Examples(examples, width);
  return text + "\n" + Paragraph(kVariables, width) +
         Paragraph(fmt::format("Exit codes: {}", kExitCodes), width);
}

}  // namespace kvrun::cli
