#include "runtime/jinja/jinja_template.h"

#include <algorithm>
#include <utility>

#include "runtime/jinja/evaluate.h"

namespace kvrun {
namespace {

using jinja::Run;
using jinja::Value;

Value JinjaString(const std::string& text) { return Value::String(jinja::MarkedText(text, true)); }

Result<Value> JinjaValue(Run& run, const nlohmann::ordered_json& json);

Result<Value> JinjaList(Run& run, const nlohmann::ordered_json& json) {
  std::vector<Value> items;
  for (const nlohmann::ordered_json& item : json) {
    Result<Value> value = JinjaValue(run, item);
    if (!value.ok()) return value;
    items.push_back(std::move(value).value());
  }
  return jinja::MakeList(run, std::move(items));
}

Result<Value> JinjaDict(Run& run, const nlohmann::ordered_json& json) {
  std::vector<jinja::Pair> entries;
  for (const auto& [name, item] : json.get_ref<const nlohmann::ordered_json::object_t&>()) {
    Result<Value> value = JinjaValue(run, item);
    if (!value.ok()) return value;
    entries.emplace_back(JinjaString(name), std::move(value).value());
  }
  return jinja::MakeDict(run, entries);
}

Result<Value> JinjaScalar(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::json::value_t::boolean: return Value::Bool(json.get<bool>());
    case nlohmann::json::value_t::number_integer: return Value::Int(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > INT64_MAX) return jinja::Wrong("a number is larger than 64 bits hold");
      return Value::Int(static_cast<int64_t>(number));
    }
    case nlohmann::json::value_t::number_float: return Value::Float(json.get<double>());
    case nlohmann::json::value_t::string: return JinjaString(json.get_ref<const std::string&>());
    default: return Value::None();
  }
}

Result<Value> JinjaValue(Run& run, const nlohmann::ordered_json& json) {
  if (!json.is_structured()) return JinjaScalar(json);
  const jinja::Descent descent(run);
  if (Status status = descent.Check(); !status.ok()) return status;
  return json.is_array() ? JinjaList(run, json) : JinjaDict(run, json);
}

// What a template knows by this name before it sets it; kMissing where it is nothing.
Result<Value> JinjaContextValue(Run& run, const JinjaVariables& variables, const std::string& name) {
  if (const auto form = variables.form.find(name);
      variables.form.is_object() && form != variables.form.end()) {
    if (form->is_string()) return Value::Form(form->get_ref<const std::string&>());
    return JinjaValue(run, *form);
  }
  if (const auto content = variables.content.find(name);
      variables.content.is_object() && content != variables.content.end()) {
    return JinjaValue(run, *content);
  }
  const jinja::FunctionDef* const global = jinja::FindGlobal(name);
  return global == nullptr ? Result<Value>(Value()) : jinja::MakeCallable(run, global, Value());
}

Result<JinjaText> RenderJinja(Run& run, const jinja::SyntaxTree& tree, const JinjaVariables& variables) {
  std::vector<Value> context(tree.names.size());
  for (size_t i = 0; i < context.size(); ++i) {
    if (!tree.is_read[i]) continue;
    Result<Value> value = JinjaContextValue(run, variables, tree.names[i]);
    if (!value.ok()) return value.status().WithContext("variable '" + tree.names[i] + "'");
    context[i] = std::move(value).value();
  }
  KVRUN_ASSIGN_OR_RETURN(const jinja::MarkedText text,
                         jinja::Evaluator(run, tree, std::move(context)).Render());
  return text.Pieces();
}

}  // namespace

struct JinjaTemplate::Parsed {
  std::unique_ptr<const jinja::SyntaxTree> tree;
};

JinjaTemplate::JinjaTemplate(std::unique_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;
JinjaTemplate::~JinjaTemplate() = default;

Result<JinjaTemplate> JinjaTemplate::Parse(std::string_view source) {
  Result<std::unique_ptr<jinja::SyntaxTree>> tree = jinja::ParseTemplate(source);
  if (!tree.ok()) return tree.status().WithContext("the chat template cannot be read");
  auto parsed = std::make_unique<Parsed>();
  parsed->tree = std::move(tree).value();
  return JinjaTemplate(std::move(parsed));
}

Result<JinjaText> JinjaTemplate::Render(const JinjaVariables& variables, const JinjaLimits& limits) const {
  Run run(limits, variables.now);
  Result<JinjaText> text = RenderJinja(run, *parsed_->tree, variables);
  if (text.ok()) return text;
  return text.status().WithContext("the chat template, line " + std::to_string(run.line));
}

const std::vector<std::string>& JinjaTemplate::form_texts() const { return parsed_->tree->form_texts; }

bool JinjaTemplate::reads(std::string_view variable) const {
  const std::vector<std::string>& names = parsed_->tree->names;
  const auto at = std::find(names.begin(), names.end(), variable);
  return at != names.end() && parsed_->tree->is_read[static_cast<size_t>(at - names.begin())];
}

}  // namespace kvrun
