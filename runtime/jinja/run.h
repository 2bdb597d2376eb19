// One run of a template: what it has used of its limits, and the names that it sees. Internal to the
// templates' interpreter.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/jinja/value.h"

namespace kvrun::jinja {

// Names are numbered when a template is parsed.
using NameNumber = uint32_t;

// Names that a part of the template sets; what it does not know its parent does.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<NameNumber, Value>> values;

  const Value* Find(NameNumber name) const;
  void Set(NameNumber name, Value value);
};

class Run {
 public:
  Run(const JinjaLimits& limits, std::time_t now) : limits_(limits), now_(now) {}
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Status Step(uint64_t n = 1) {
    n_steps_ += n;
    return n_steps_ <= limits_.max_steps ? Status::Ok() : TooManySteps();
  }
  // To be asked before memory of this size is taken.
  Status Take(size_t n_bytes);
  // A text of a run: counts its bytes.
  Result<Value> MakeString(MarkedText text);

  const JinjaLimits& limits() const { return limits_; }
  std::time_t now() const { return now_; }

  // Keeps what may hold itself until the run ends.
  void Retain(std::shared_ptr<Scope> scope) { scopes_.push_back(std::move(scope)); }
  void Retain(std::shared_ptr<Namespace> name_space) { namespaces_.push_back(std::move(name_space)); }

  uint32_t line = 1;  // of the template: where the run is
  uint32_t depth = 0;

 private:
  Status TooManySteps() const;

  JinjaLimits limits_;
  std::time_t now_;
  uint64_t n_steps_ = 0;
  size_t n_bytes_ = 0;
  std::vector<std::shared_ptr<Scope>> scopes_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// Counts how deep calls stand one in the other.
class Descent {
 public:
  explicit Descent(Run& run) : run_(run) { ++run_.depth; }
  ~Descent() { --run_.depth; }
  Descent(const Descent&) = delete;
  Descent& operator=(const Descent&) = delete;

  Status Check() const;

 private:
  Run& run_;
};

// What a template does wrong.
Status Wrong(std::string message);
// The text, shortened for a message.
std::string Excerpt(std::string_view text);

}  // namespace kvrun::jinja
