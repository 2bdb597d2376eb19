#include "runtime/jinja/run.h"

namespace kvrun::jinja {

const Value* Scope::Find(NameNumber name) const {
  for (const auto& [number, value] : values) {
    if (number == name) return &value;
  }
  return nullptr;
}

void Scope::Set(NameNumber name, Value value) {
  for (auto& [number, old] : values) {
    if (number == name) {
      old = std::move(value);
      return;
    }
  }
  values.emplace_back(name, std::move(value));
}

// A macro holds the scope which holds it; a namespace may hold itself.
Run::~Run() {
  for (const auto& scope : scopes_) {
    scope->values.clear();
    scope->parent.reset();
  }
  for (const auto& name_space : namespaces_) name_space->attributes.clear();
}

Status Run::TooManySteps() const {
  return {StatusCode::kInvalidArgument,
          "the template takes more than " + std::to_string(limits_.max_steps) + " steps"};
}

Status Run::Take(size_t n_bytes) {
  // What is made is also looked at.
  KVRUN_RETURN_IF_ERROR(Step(n_bytes / 256));
  if (n_bytes > limits_.max_bytes - n_bytes_) {
    return {
        StatusCode::kInvalidArgument,
        "the template makes more than " + std::to_string(limits_.max_bytes) + " bytes of text and values"};
  }
  n_bytes_ += n_bytes;
  return Status::Ok();
}

Result<Value> Run::MakeString(MarkedText text) {
  KVRUN_RETURN_IF_ERROR(Take(text.size() + 32));
  return Value::String(std::move(text));
}

Status Descent::Check() const {
  if (run_.depth <= run_.limits().max_depth) return Status::Ok();
  return {StatusCode::kInvalidArgument, "calls, expressions or values stand more than " +
                                            std::to_string(run_.limits().max_depth) + " deep in each other"};
}

Status Wrong(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

std::string Excerpt(std::string_view text) {
  constexpr size_t kMostBytes = 300;
  return std::string(text.substr(0, kMostBytes)) + (text.size() > kMostBytes ? "..." : "");
}

}  // namespace kvrun::jinja
