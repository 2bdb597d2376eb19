#include "tests/support/class_functions.h"

#include <regex>
#include <vector>

namespace kvrun::testing {
namespace {

// Without comments, literals and lines of the preprocessor, which may have brackets of their own.
std::string Bare(std::string_view header) {
  static const std::regex kNoCode(R"(//[^\n]*|/\*[^]*?\*/|"(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])'|(^|\n)#[^\n]*)");
  return std::regex_replace(std::string(header), kNoCode, " ");
}

std::string WithoutTemplates(std::string statement) {
  static const std::regex kArrow("->");
  static const std::regex kInnermost("<[^<>]*>");
  statement = std::regex_replace(statement, kArrow, " ");
  for (std::string before; before != statement;) {
    before = statement;
    statement = std::regex_replace(before, kInnermost, " ");
  }
  return statement;
}

bool IsPublicFunction(const std::string& statement, const std::string& class_name) {
  static const std::regex kNoFunction(R"(^\s*(using|typedef|friend|static_assert|enum)\b[^]*)");
  static const std::regex kDeleted(R"([^]*=\s*delete\s*)");
  static const std::regex kOperator(R"([^]*\boperator\b[^]*)");
  // A name before the first bracket, and nothing that is assigned before it; `(*name)` is a pointer.
  static const std::regex kFunction(R"(([^=(]*?)(~?\w+)\s*\((?!\s*\*)[^]*)");
  if (std::regex_match(statement, kNoFunction) || std::regex_match(statement, kDeleted)) return false;
  if (std::regex_match(statement, kOperator)) return true;
  std::smatch match;
  const std::string plain = WithoutTemplates(statement);
  if (!std::regex_match(plain, match, kFunction)) return false;
  return match[2] != class_name && match[2].str().front() != '~';
}

struct Scope {
  std::string name;  // of a class; empty: a namespace
  std::string last;  // of the name, what constructors are called
  bool is_public = true;
};

// What stands before a brace, where that opens a class or a namespace.
bool Opens(const std::string& statement, Scope* scope) {
  static const std::regex kNamespace(R"(\s*(inline\s+)?(namespace\b[^]*|extern\s*))");
  static const std::regex kClass(R"(\s*(class|struct|union)\s+(alignas\s*\(\s*\w*\s*\)\s*)?([\w:]+)[^(]*)");
  static const std::regex kTemplate(R"(^\s*template\b\s*)");
  if (std::regex_match(statement, kNamespace)) return true;
  std::smatch match;
  const std::string plain = std::regex_replace(WithoutTemplates(statement), kTemplate, "");
  if (!std::regex_match(plain, match, kClass)) return false;
  scope->last = match[3];
  scope->name = scope->name.empty() ? scope->last : scope->name + "::" + scope->last;
  scope->is_public = match[1] != "class";
  return true;
}

class Reader {
 public:
  explicit Reader(std::string text) : text_(std::move(text)) {}

  std::map<std::string, size_t> Read() {
    for (at_ = 0; at_ < text_.size(); ++at_) Take(text_[at_]);
    return functions_;
  }

 private:
  void Take(char c) {
    if (c == '{') return Open();
    if (c == '}') {
      if (!scopes_.empty()) scopes_.pop_back();
      statement_.clear();
    } else if (c == ';') {
      EndStatement();
    } else {
      statement_ += c;
      if (c == ':') TakeLabel();
    }
  }

  void TakeLabel() {
    static const std::regex kLabel(R"(\s*(public|protected|private)\s*:)");
    std::smatch match;
    if (!std::regex_match(statement_, match, kLabel)) return;
    if (!scopes_.empty()) scopes_.back().is_public = match[1] == "public";
    statement_.clear();
  }

  void Open() {
    Scope scope;
    if (!scopes_.empty()) scope.name = scopes_.back().name;
    if (Opens(statement_, &scope)) {
      if (!scope.last.empty()) functions_[scope.name];
      // What is in a part that is not public is nobody's to learn.
      scope.is_public &= scopes_.empty() || scopes_.back().is_public;
      scopes_.push_back(scope);
      statement_.clear();
      return;
    }
    SkipBraces();
    const size_t next = text_.find_first_not_of(" \n", at_ + 1);
    const char c = next == std::string::npos ? ';' : text_[next];
    // A body ends without more; values of members are followed by ',', a body, or ';'.
    if (c != ';' && c != ',' && c != '{') EndStatement();
  }

  void SkipBraces() {
    for (size_t depth = 0; at_ < text_.size(); ++at_) {
      depth += text_[at_] == '{' ? 1 : 0;
      if (text_[at_] == '}' && --depth == 0) return;
    }
  }

  void EndStatement() {
    if (!scopes_.empty() && scopes_.back().is_public && !scopes_.back().last.empty() &&
        IsPublicFunction(statement_, scopes_.back().last)) {
      ++functions_[scopes_.back().name];
    }
    statement_.clear();
  }

  std::string text_;
  size_t at_ = 0;
  std::string statement_;
  std::vector<Scope> scopes_;
  std::map<std::string, size_t> functions_;
};

}  // namespace

std::map<std::string, size_t> PublicFunctions(std::string_view header) { return Reader(Bare(header)).Read(); }

}  // namespace kvrun::testing
