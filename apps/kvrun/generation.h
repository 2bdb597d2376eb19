// From a prompt to an answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/common/api.h"
#include "apps/common/options.h"

namespace kvrun::cli {

// Owns what kvrun_generate_options points to.
struct GenerationOptions {
  GenerationOptions() { kvrun_generate_options_init(&values); }

  kvrun_generate_options values;
  std::vector<std::string> stop;
  bool ignore_end = false;
  bool has_random_seed = false;  // --seed -1: until ChooseSeed
};

// -n, --temp, --top-k, --top-p, --min-p, --repeat-penalty, --repeat-window, --presence-penalty,
// --frequency-penalty, --seed, --stop, --ignore-end. The help says what a command does where they are not
// given: the library's defaults, or ChooseSampling.
enum class SamplingDefaults : uint8_t { kGreedy, kChat };
void AddGenerationOptions(OptionSet* set, GenerationOptions* generation, uint32_t default_max_tokens,
                          SamplingDefaults defaults = SamplingDefaults::kGreedy);
// Draws the seed where a random one is asked for, and says which it is, after `where`.
void ChooseSeed(GenerationOptions* generation, bool quiet, const std::string& where = "");
void CheckGenerationOptions(const GenerationOptions& generation);

// How prompts and messages become ids.
struct PromptForm {
  bool parse_special = false;
  std::string thinking = "auto";  // "auto", "on", "off"; "hide": as "auto", and nothing of it is shown
  std::string chat_template;      // the option's value: a name or a file; "": the model file's own
  std::vector<std::string> template_variables;  // NAME=VALUE
  // What ReadPromptForm made of the last two.
  std::string jinja;
  Json variables = Json::object();

  bool shows_reasoning() const { return thinking != "hide"; }
};

// --parse-special, --thinking, --chat-template, --template-var.
void AddPromptFormOptions(OptionSet* set, PromptForm* form);
// Before the first chat is encoded: reads the files that the options name. A Failure if the template is
// neither a known name nor a file.
void ReadPromptForm(PromptForm* form);
// Says on standard error where the file's own template is not what makes the chat.
void NoteChatTemplate(const PromptForm& form, const Json& model_info);

// A Failure if no token comes of it; `what` names the prompt.
std::vector<int32_t> EncodePlain(const Model& model, const PromptForm& form, const std::string& text,
                                 const std::string& what);
// Of messages as they are, the first of which may be the system's.
std::vector<int32_t> EncodeChat(const Model& model, const PromptForm& form,
                                const std::vector<kvrun_chat_message>& messages);
// A conversation's beginning. `system` may be empty.
std::vector<int32_t> EncodeChat(const Model& model, const PromptForm& form, const std::string& system,
                                const std::string& text);
// A whole conversation: objects with "role", "content", and what else the template reads of one, such as
// "reasoning_content" and "tool_calls". tools: a list, as the template takes them; null: those of
// --template-var.
std::vector<int32_t> EncodeConversation(const Model& model, const PromptForm& form, const Json& messages,
                                        const Json& tools = Json());
// What follows an answer: the end of its turn, whatever that is in the model's chat form, and the user's next
// message. The end of the turn is always taken from here and never from what the model generated, because an
// answer may also have ended without it.
std::vector<int32_t> EncodeNextTurn(const Model& model, const PromptForm& form, const std::string& text);

// Says on standard error how many bytes of a text the model does not see, if any; `what` names the text.
void NoteLostBytes(const Model& model, const PromptForm& form, const std::string& text,
                   const std::string& what);

// Messages are C strings.
void RejectNul(const std::string& text);

// Of a step, where GenerationOptions::values.n_logprobs asks for it.
struct StepLogprobs {
  kvrun_token_logprob taken;
  std::vector<kvrun_token_logprob> likeliest;
};

struct ReasoningCloser {
  void operator()(kvrun_reasoning* reasoning) const { kvrun_reasoning_close(reasoning); }
};
using Reasoning = std::unique_ptr<kvrun_reasoning, ReasoningCloser>;
// Tells what the model thinks from what it answers to the prompt of a chat.
Reasoning BeginReasoning(const Model& model, const std::vector<int32_t>& prompt);

struct Answer {
  std::string text;       // what the model answers
  std::string reasoning;  // what it thought before, where that was told from the answer
  std::string written;    // both as the model wrote them, with those of its marks that are text
  std::vector<int32_t> tokens;
  kvrun_finish finish = KVRUN_FINISH_CANCELLED;
  std::vector<StepLogprobs> logprobs;  // of each token, where they were asked for
};

// A token as it comes; valid during the call. One that ends thoughts and begins the answer comes as two
// pieces, the first without it.
struct GeneratedPiece {
  int32_t token = 0;                       // negative: only text that was held back
  std::string_view text;                   // whole characters, possibly none
  bool is_reasoning = false;               // what the model thinks, not what it answers
  const StepLogprobs* logprobs = nullptr;  // null where they were not asked for
};
// Answers 0, or the errno of a write that failed, which ends generation and is thrown.
using PieceSink = std::function<int(const GeneratedPiece& piece)>;

// Continues sequence 0, with each token handed to `sink`, which may be empty. Ends early on Ctrl-C (finish:
// cancelled). reasoning: null: thoughts are not told from the answer.
Answer Generate(const Session& session, const GenerationOptions& generation, Reasoning reasoning,
                const PieceSink& sink);

}  // namespace kvrun::cli
