// Chat templates: the part of Jinja2 that they use, as Python's Jinja2 runs it in Hugging Face's sandbox
// (trim_blocks, lstrip_blocks, loop controls, `{% generation %}`, raise_exception, strftime_now, tojson as
// theirs).
//
// A rendered text knows where each piece of it comes from. What the template itself spells, and what the
// caller vouches for (the BOS text), is *form*; all that stands in other variables is *content*. Filters,
// slices, joins and methods keep the marks, so that a message that holds "<|im_end|>" stays a message
// whatever a template does to it.
//
// A template comes with a model, from strangers: it reads no file and calls nothing outside, and steps, depth
// and bytes are bounded.
//
// Threads: a JinjaTemplate is constant; several may render it at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "platform/base/status.h"
#include "runtime/jinja/jinja_text.h"

namespace kvrun {

struct JinjaVariables {
  // An object. Its texts are content; names of keys are too.
  nlohmann::ordered_json content;
  // An object of texts which are form: bos_token, eos_token.
  nlohmann::ordered_json form;
  // What strftime_now tells, in local time; 0: the time of the call.
  std::time_t now = 0;
};

class JinjaTemplate {
 public:
  // kInvalidArgument: not Jinja, with the line; kUnsupported: a tag, filter or test that no chat template
  // uses. In the branches of an `if` these are met when the template runs, as in Jinja.
  static Result<JinjaTemplate> Parse(std::string_view source);
  JinjaTemplate(JinjaTemplate&&) noexcept;
  JinjaTemplate& operator=(JinjaTemplate&&) noexcept;
  ~JinjaTemplate();

  // kInvalidArgument: what raise_exception says, what the template cannot do with these variables, or a limit
  // that it met; with the line. kUnsupported: a method that is not known. Numbers are those of 64 bits: where
  // Python would go on, it is an error.
  Result<JinjaText> Render(const JinjaVariables& variables, const JinjaLimits& limits = {}) const;

  // Every text that the template itself may write: what stands outside of tags, and its string literals.
  const std::vector<std::string>& form_texts() const;
  // Whether the template asks for a variable of this name: "enable_thinking", "tools".
  bool reads(std::string_view variable) const;

 private:
  struct Parsed;
  explicit JinjaTemplate(std::unique_ptr<const Parsed> parsed);

  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace kvrun
