// kvrun tokenize: the ids of a text.
#include <optional>
#include <string>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/documents.h"
#include "apps/kvrun/generation.h"

namespace kvrun::cli {
namespace {

struct TokenizeOptions {
  SharedOptions shared;
  std::string prompt;
  std::vector<std::string> files;
  bool bos = false;
  bool special = false;
  const OptionSet* set = nullptr;
};

std::string IdLine(const std::vector<int32_t>& ids) {
  std::string line;
  for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  return line + "\n";
}

// Ids are of use all the same: to count them, or to another program.
void NoteThatItIsNotRun(const Model& model) {
  const Json info = ModelInfo(model);
  const Json refusal = info.value("unsupported", Json());
  const bool has_weights = !info.value("tensor_types", Json()).empty();
  if (has_weights && refusal.is_string()) {
    PrintMessage("note: kvrun does not run this model: " + refusal.get<std::string>());
  }
}

int TokenizeText(const TokenizeOptions& options) {
  const bool has_prompt = !options.prompt.empty() || options.set->OnCommandLine("--prompt");
  CheckTextNames(options.files);
  if (!has_prompt && options.files.empty()) throw UsageError("nothing to encode: give -f FILE or -p TEXT");
  const Model model = OpenAnyNamedModel(options.shared);
  const std::string text =
      ComposedText(ReadDocuments(options.files), has_prompt ? std::optional(options.prompt) : std::nullopt);
  const uint32_t flags =
      (options.bos ? KVRUN_ENCODE_ADD_BOS : 0U) | (options.special ? KVRUN_ENCODE_PARSE_SPECIAL : 0U);
  const std::vector<int32_t> ids = Tokenize(model, text, flags);
  PromptForm form;
  form.parse_special = options.special;
  NoteLostBytes(model, form, text, "the text");
  NoteThatItIsNotRun(model);
  WriteStdout(options.shared.json ? JsonLine({{"tokens", ids}}) : IdLine(ids));
  return 0;
}

}  // namespace

Command AddTokenizeCommand(CLI::App* program) {
  auto options = std::make_shared<TokenizeOptions>();
  auto set = std::make_shared<OptionSet>(program, "tokenize", "Print the token ids of a text, on one line");
  set->Group(HelpGroup::kPrompt);
  AddModelOption(set.get(), &options->shared);
  set->TextList(
      "-f,--file", &options->files, "FILE",
      "a file with the text (-: standard input); several are read in order, with a blank line between them");
  set->Text("-p,--prompt", &options->prompt, "TEXT",
            "the text; with -f it follows the file, as in kvrun run");
  set->Flag("--bos", &options->bos, "start with the begin-of-sequence token, if the model has one");
  set->Flag("--special", &options->special, "recognise control tokens that are written in the text");
  set->AddExample("kvrun tokenize -m model.gguf -p \"Once upon a time\"", "print the ids of a text");
  set->AddExample("kvrun tokenize -m model.gguf -f report.txt | wc -w", "count the tokens of a file");
  set->Group(HelpGroup::kOutput);
  set->Flag("--json", &options->shared.json, "print a JSON object with \"tokens\" instead of the line");
  options->set = set.get();
  return {set, {options, &options->shared.json}, [options] { return TokenizeText(*options); }};
}

}  // namespace kvrun::cli
