#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/engine/config/config_file.h"
#include "runtime/engine/config/config_keys.h"
#include "runtime/engine/text/utf8.h"

namespace kvrun {
namespace {

// As TOML has it, in quotes.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : RepairedUtf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += fmt::format("\\u{:04X}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

bool IsCount(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && (text == "0" || text[0] != '0') && std::all_of(text.begin(), text.end(), is_digit);
}

class Writer {
 public:
  // A comment is written with a key's first value.
  void Key(std::string_view key, std::string_view value, std::string_view comment) {
    constexpr size_t kCommentColumn = 32;
    std::string line = fmt::format("{} = {}", key, value);
    if (commented_.emplace(table_, key).second) {
      line = fmt::format("{:<{}}  # {}", line, kCommentColumn, comment);
    }
    text_ += line + "\n";
  }
  void Text(std::string_view key, std::string_view value, std::string_view comment) {
    if (!value.empty()) Key(key, Quoted(value), comment);
  }
  void Figure(std::string_view key, double value, std::string_view comment) {
    if (value > 0.0 && value <= kMaxConfigFigure) Key(key, fmt::format("{}", value), comment);
  }
  void Table(std::string_view header) {
    table_ = header;
    text_ += fmt::format("\n{}\n", header);
  }
  void Line(std::string_view line) { text_ += fmt::format("{}\n", line); }

  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
  std::string table_;
  std::set<std::pair<std::string, std::string>> commented_;  // tables and keys
};

void WriteMachine(const KvConfig& config, Writer* writer) {
  writer->Table("[machine]");
  writer->Text("device", config.device, "another one is refused");
  writer->Text("driver", config.driver, "another one is noted");
  writer->Text("cpu", config.cpu, "another one is refused where the device is a CPU, else noted");
  writer->Text("storage", config.storage, "file system and disk of the KV's folder: another one is noted");
  writer->Key("exact_activations", config.exact_activations ? "true" : "false",
              "of the CPU as a device: another setting is noted");
}

void WriteOption(std::string_view name, const std::string& value, Writer* writer) {
  for (const auto& [key, row] : ConfigOptionKeys()) {
    if (row->name != name) continue;
    writer->Key(key, row->config.is_count && IsCount(value) ? value : Quoted(value), row->config.comment);
  }
}

void WriteSolution(const ConfigSolution& solution, Writer* writer) {
  writer->Table("[[solution]]");
  writer->Key("batch", fmt::format("{}", solution.batch), "sequences");
  writer->Key("ctx", fmt::format("{}", solution.ctx), "tokens of each");
  writer->Key("budget_bytes", fmt::format("{}", solution.budget_bytes),
              "of memory for the KV cache, all sequences together");
  for (const auto& [name, value] : solution.options) WriteOption(name, value, writer);
  writer->Figure("predicted_ms", solution.predicted_ms, "of a decoding step; from here on for people only");
  writer->Figure("measured_ms", solution.measured_ms, "of a decoding step");
  writer->Figure("kl", solution.kl, "mean KL divergence to all KV in memory, nats");
  writer->Text("bound", solution.bound, "what a decoding step waits for");
}

}  // namespace

std::string ConfigToToml(const KvConfig& config) {
  Writer writer;
  writer.Line("# Options of the KV cache for one model on one machine: `kvrun run --config FILE`.");
  writer.Line("# docs/config.md says what each key means, and what happens where there is no solution for a");
  writer.Line("# number of sequences and a context.");
  writer.Key("version", fmt::format("{}", kConfigVersion), "of this form");
  writer.Table("[model]");
  writer.Text("name", config.model, "for people");
  writer.Text("fingerprint", config.model_fingerprint, "another one is refused");
  WriteMachine(config, &writer);
  writer.Table("[kv]");
  writer.Text("method", config.method, "where the KV lies, and what of it is read");
  for (const ConfigSolution& solution : config.solutions) WriteSolution(solution, &writer);
  return writer.Take();
}

}  // namespace kvrun
