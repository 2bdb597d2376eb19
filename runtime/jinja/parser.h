// Makes a syntax tree of tokens. Internal to the templates' interpreter.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/jinja/lexer.h"
#include "runtime/jinja/syntax_tree.h"

namespace kvrun::jinja {

class Parser {
 public:
  Parser(std::vector<LexedToken> tokens, SyntaxTree* tree);

  Status Parse();

 private:
  using Kind = Expression::Kind;

  // How deep what is being parsed stands.
  class Nesting {
   public:
    explicit Nesting(Parser* parser) : parser_(parser) { ++parser_->nesting_; }
    ~Nesting() { --parser_->nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    Status Check() const;

   private:
    Parser* parser_;
  };
  // A part of the template in which `soft_` and `n_loops_` are others.
  struct Frame {
    bool soft = false;  // in the parts of an `if`, unknown filters are met when the template runs
    int n_loops = 0;    // that `break` could leave
  };

  const LexedToken& Here() const { return tokens_[position_]; }
  const LexedToken& After() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  const LexedToken& Take();
  bool Is(Token token) const { return Here().token == token; }
  bool IsOperator(std::string_view text) const;
  bool IsName(std::string_view text) const;
  bool SkipOperator(std::string_view text);
  bool SkipName(std::string_view text);
  Status Expect(Token token, std::string_view what);
  Status ExpectOperator(std::string_view text);
  Status ExpectName(std::string_view text);
  Status Unexpected() const;

  NameNumber Number(std::string_view name);

  // parse_statements.cc
  Result<Body> ParseBody(std::initializer_list<std::string_view> ends);
  Result<Body> ParseInFrame(Frame frame, std::initializer_list<std::string_view> ends);
  Status ParseTag(Body* body);
  Result<std::unique_ptr<Statement>> ParseStatement();
  Status ParseFor(Statement* statement);
  Status ParseIf(Statement* statement);
  Status ParseSet(Statement* statement);
  Status ParseMacro(Statement* statement);
  Status ParseCallBlock(Statement* statement);
  Status ParseFilterBlock(Statement* statement);
  Status ParseWith(Statement* statement);
  Status ParseGeneration(Statement* statement);
  Status ParseLoopControl(Statement* statement);
  Status ParseSignature(Macro* macro);
  Status ParseMacroBody(Macro* macro, std::string_view end);
  Result<Target> ParseTarget(bool with_namespace, bool in_brackets = false);
  Result<Target> ParseOneTarget(bool with_namespace);
  Result<std::string> ParseOwnName();

  // parse_expressions.cc
  ExpressionPtr Make(Kind kind, uint32_t line) const;
  Result<ExpressionPtr> Finish(ExpressionPtr expression) const;
  Result<ExpressionPtr> ParseTuple(bool with_conditional, bool in_brackets = false);
  Result<ExpressionPtr> ParseExpression(bool with_conditional = true);
  Result<ExpressionPtr> ParseConditional();
  Result<ExpressionPtr> ParseOr();
  Result<ExpressionPtr> ParseAnd();
  Result<ExpressionPtr> ParseNot();
  Result<ExpressionPtr> ParseCompare();
  Result<ExpressionPtr> ParseSum();
  Result<ExpressionPtr> ParseConcat();
  Result<ExpressionPtr> ParseProduct();
  Result<ExpressionPtr> ParsePower();
  Result<ExpressionPtr> ParseUnary(bool with_filter);
  Result<ExpressionPtr> ParsePrimary();
  Result<ExpressionPtr> ParseName();
  Result<ExpressionPtr> ParseStrings();
  Result<ExpressionPtr> ParseNumber();
  Result<ExpressionPtr> ParseList();
  Result<ExpressionPtr> ParseDict();
  Result<ExpressionPtr> ParsePostfix(ExpressionPtr expression);
  Result<ExpressionPtr> ParseFilters(ExpressionPtr expression);
  Result<ExpressionPtr> ParseFilter(ExpressionPtr input);
  Result<ExpressionPtr> ParseTest(ExpressionPtr input);
  Result<ExpressionPtr> ParseAttribute(ExpressionPtr object);
  Result<ExpressionPtr> ParseSubscript(ExpressionPtr object);
  Status ParseSlice(Expression* slice);
  Result<ExpressionPtr> ParseCall(ExpressionPtr callee);
  Result<std::unique_ptr<CallArguments>> ParseArguments();
  Result<ExpressionPtr> Chain(ExpressionPtr first, Kind kind, std::initializer_list<std::string_view> words,
                              Result<ExpressionPtr> (Parser::*next)());
  // The operator here, and past it.
  bool SkipArithmetic(std::initializer_list<std::pair<std::string_view, Operator>> operators,
                      Operator* found);
  bool SkipComparison(Operator* found);
  Result<std::string> ParseDottedName();
  void Resolve(Expression* expression, const FunctionDef* function, std::string_view what,
               const std::string& name);

  std::vector<LexedToken> tokens_;
  size_t position_ = 0;
  SyntaxTree* tree_;
  std::map<std::string, NameNumber, std::less<>> numbers_;
  uint32_t nesting_ = 0;
  Frame frame_;
  std::vector<std::pair<uint32_t, std::string>> unknown_;  // filters and tests, with their lines
  bool reads_special_[kFirstOwnName] = {};                 // in the macro that is being parsed
};

}  // namespace kvrun::jinja
