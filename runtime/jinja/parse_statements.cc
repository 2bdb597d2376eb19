// The parser's tags.
#include <algorithm>

#include "runtime/jinja/parser.h"

namespace kvrun::jinja {
namespace {

using StatementKind = Statement::Kind;

constexpr uint32_t kMostNesting = 150;
constexpr size_t kMostSourceBytes = size_t{1} << 20;

}  // namespace

Status Parser::Nesting::Check() const {
  if (parser_->nesting_ <= kMostNesting) return Status::Ok();
  return WrongSyntax(parser_->Here().line, "tags or expressions are nested too deeply");
}

Parser::Parser(std::vector<LexedToken> tokens, SyntaxTree* tree) : tokens_(std::move(tokens)), tree_(tree) {
  for (const char* name : {"loop", "caller", "varargs", "kwargs"}) Number(name);
}

const LexedToken& Parser::Take() {
  const LexedToken& token = tokens_[position_];
  if (token.token != Token::kEnd) ++position_;
  return token;
}

bool Parser::IsOperator(std::string_view text) const { return Is(Token::kOperator) && Here().text == text; }
bool Parser::IsName(std::string_view text) const { return Is(Token::kName) && Here().text == text; }

bool Parser::SkipOperator(std::string_view text) {
  if (!IsOperator(text)) return false;
  Take();
  return true;
}

bool Parser::SkipName(std::string_view text) {
  if (!IsName(text)) return false;
  Take();
  return true;
}

Status Parser::Unexpected() const {
  if (Is(Token::kEnd))
    return WrongSyntax(Here().line, "the template ends within a tag or before its end tag");
  return WrongSyntax(Here().line, "unexpected '" + Excerpt(Here().text) + "'");
}

Status Parser::Expect(Token token, std::string_view what) {
  if (!Is(token)) return Unexpected().WithContext("expected " + std::string(what));
  Take();
  return Status::Ok();
}

Status Parser::ExpectOperator(std::string_view text) {
  return SkipOperator(text) ? Status::Ok() : Unexpected();
}
Status Parser::ExpectName(std::string_view text) { return SkipName(text) ? Status::Ok() : Unexpected(); }

NameNumber Parser::Number(std::string_view name) {
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) return found->second;
  const auto number = static_cast<NameNumber>(tree_->names.size());
  numbers_.emplace(std::string(name), number);
  tree_->names.emplace_back(name);
  tree_->is_read.push_back(false);
  return number;
}

Status Parser::Parse() {
  KVRUN_ASSIGN_OR_RETURN(tree_->body, ParseBody({}));
  if (!Is(Token::kEnd)) return Unexpected();
  if (unknown_.empty()) return Status::Ok();
  const auto& [line, message] = unknown_.front();
  return {StatusCode::kUnsupported, WrongSyntax(line, message).message()};
}

// Until one of `ends`, whose name is where the parser is then, or the template's end where there are none.
Result<Body> Parser::ParseBody(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(this);
  KVRUN_RETURN_IF_ERROR(nesting.Check());
  Body body;
  while (!Is(Token::kEnd)) {
    auto statement = std::make_unique<Statement>();
    statement->line = Here().line;
    if (Is(Token::kData)) {
      tree_->form_texts.emplace_back(Here().text);
      statement->text = MarkedText::Form(Take().text);
      body.push_back(std::move(statement));
    } else if (Is(Token::kVariableBegin)) {
      Take();
      statement->kind = StatementKind::kOutput;
      KVRUN_ASSIGN_OR_RETURN(statement->expression, ParseTuple(true));
      KVRUN_RETURN_IF_ERROR(Expect(Token::kVariableEnd, "'}}'"));
      body.push_back(std::move(statement));
    } else {
      Take();
      const auto is_here = [this](std::string_view end) { return IsName(end); };
      if (std::any_of(ends.begin(), ends.end(), is_here)) return body;
      KVRUN_RETURN_IF_ERROR(ParseTag(&body));
      KVRUN_RETURN_IF_ERROR(Expect(Token::kBlockEnd, "'%}'"));
    }
  }
  if (ends.size() != 0) return Unexpected();
  return body;
}

Result<Body> Parser::ParseInFrame(Frame frame, std::initializer_list<std::string_view> ends) {
  const Frame outer = std::exchange(frame_, frame);
  SkipOperator(":");
  KVRUN_RETURN_IF_ERROR(Expect(Token::kBlockEnd, "'%}'"));
  Result<Body> body = ParseBody(ends);
  frame_ = outer;
  return body;
}

Status Parser::ParseTag(Body* body) {
  if (!SkipName("print")) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Statement> statement, ParseStatement());
    body->push_back(std::move(statement));
    return Status::Ok();
  }
  bool is_first = true;
  for (; !Is(Token::kBlockEnd); is_first = false) {
    if (!is_first) KVRUN_RETURN_IF_ERROR(ExpectOperator(","));
    auto statement = std::make_unique<Statement>();
    statement->kind = StatementKind::kOutput;
    statement->line = Here().line;
    KVRUN_ASSIGN_OR_RETURN(statement->expression, ParseExpression());
    body->push_back(std::move(statement));
  }
  return Status::Ok();
}

Result<std::unique_ptr<Statement>> Parser::ParseStatement() {
  struct Tag {
    std::string_view name;
    StatementKind kind;
    Status (Parser::*parse)(Statement* statement);
  };
  static constexpr Tag kTags[] = {
      {"for", StatementKind::kFor, &Parser::ParseFor},
      {"if", StatementKind::kIf, &Parser::ParseIf},
      {"set", StatementKind::kSet, &Parser::ParseSet},
      {"macro", StatementKind::kMacro, &Parser::ParseMacro},
      {"call", StatementKind::kCall, &Parser::ParseCallBlock},
      {"filter", StatementKind::kFilter, &Parser::ParseFilterBlock},
      {"with", StatementKind::kWith, &Parser::ParseWith},
      {"generation", StatementKind::kGeneration, &Parser::ParseGeneration},
      {"break", StatementKind::kBreak, &Parser::ParseLoopControl},
      {"continue", StatementKind::kContinue, &Parser::ParseLoopControl},
  };
  if (!Is(Token::kName)) return Unexpected();
  auto statement = std::make_unique<Statement>();
  statement->line = Here().line;
  for (const Tag& tag : kTags) {
    if (!IsName(tag.name)) continue;
    Take();
    statement->kind = tag.kind;
    KVRUN_RETURN_IF_ERROR((this->*tag.parse)(statement.get()));
    return statement;
  }
  const std::string name = Excerpt(Here().text);
  for (const char* known : {"include", "import", "from", "extends", "block", "autoescape"}) {
    if (name != known) continue;
    const Status status = WrongSyntax(Here().line, "a template of a model may not use {% " + name + " %}");
    return Status(StatusCode::kUnsupported, status.message());
  }
  return WrongSyntax(Here().line, "there is no tag named '" + name + "' here");
}

Status Parser::ParseFor(Statement* statement) {
  KVRUN_ASSIGN_OR_RETURN(statement->target, ParseTarget(false));
  KVRUN_RETURN_IF_ERROR(ExpectName("in"));
  KVRUN_ASSIGN_OR_RETURN(statement->expression, ParseTuple(false));
  const Frame outer = frame_;
  frame_.soft = false;
  if (SkipName("if")) {
    KVRUN_ASSIGN_OR_RETURN(statement->test, ParseExpression());
  }
  statement->is_recursive = SkipName("recursive");
  KVRUN_ASSIGN_OR_RETURN(statement->body, ParseInFrame({false, outer.n_loops + 1}, {"endfor", "else"}));
  if (Take().text == "else") {
    KVRUN_ASSIGN_OR_RETURN(statement->otherwise, ParseInFrame({false, outer.n_loops}, {"endfor"}));
    Take();
  }
  frame_ = outer;
  return Status::Ok();
}

Status Parser::ParseIf(Statement* statement) {
  const Frame outer = frame_;
  frame_.soft = true;
  while (true) {
    Statement::Branch branch;
    KVRUN_ASSIGN_OR_RETURN(branch.test, ParseTuple(false));
    KVRUN_ASSIGN_OR_RETURN(branch.body, ParseInFrame(frame_, {"elif", "else", "endif"}));
    statement->branches.push_back(std::move(branch));
    const std::string_view end = Take().text;
    if (end == "elif") continue;
    if (end == "else") {
      Statement::Branch last;
      KVRUN_ASSIGN_OR_RETURN(last.body, ParseInFrame(frame_, {"endif"}));
      statement->branches.push_back(std::move(last));
      Take();
    }
    break;
  }
  frame_ = outer;
  return Status::Ok();
}

Result<std::string> Parser::ParseOwnName() {
  if (!Is(Token::kName)) return Unexpected();
  std::string name(Here().text);
  for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name == constant) return WrongSyntax(Here().line, "nothing can be assigned to '" + name + "'");
  }
  Take();
  return name;
}

Result<Target> Parser::ParseOneTarget(bool with_namespace) {
  const Nesting nesting(this);
  KVRUN_RETURN_IF_ERROR(nesting.Check());
  if (SkipOperator("(")) {
    KVRUN_ASSIGN_OR_RETURN(Target inner, ParseTarget(false, true));
    KVRUN_RETURN_IF_ERROR(ExpectOperator(")"));
    return inner;
  }
  Target target;
  KVRUN_ASSIGN_OR_RETURN(const std::string name, ParseOwnName());
  target.name = Number(name);
  if (!with_namespace || !SkipOperator(".")) return target;
  tree_->is_read[target.name] = true;
  if (!Is(Token::kName)) return Unexpected();
  target.attribute = Value::Form(Take().text);
  return target;
}

Result<Target> Parser::ParseTarget(bool with_namespace, bool in_brackets) {
  Target target;
  const auto is_end = [&] { return IsName("in") || Is(Token::kBlockEnd) || IsOperator(")"); };
  while (!is_end()) {
    KVRUN_ASSIGN_OR_RETURN(Target one, ParseOneTarget(with_namespace));
    target.targets.push_back(std::move(one));
    if (!SkipOperator(",")) break;
    target.is_tuple = true;
  }
  if (target.is_tuple || (in_brackets && target.targets.empty())) {
    target.is_tuple = true;
    return target;
  }
  if (target.targets.empty()) return Unexpected();
  return Target(std::move(target.targets[0]));
}

Status Parser::ParseSet(Statement* statement) {
  KVRUN_ASSIGN_OR_RETURN(statement->target, ParseTarget(true));
  if (SkipOperator("=")) {
    KVRUN_ASSIGN_OR_RETURN(statement->expression, ParseTuple(true));
    return Status::Ok();
  }
  statement->kind = StatementKind::kSetBlock;
  while (SkipOperator("|")) {
    KVRUN_ASSIGN_OR_RETURN(statement->expression, ParseFilter(std::move(statement->expression)));
  }
  KVRUN_ASSIGN_OR_RETURN(statement->body, ParseInFrame({false, frame_.n_loops}, {"endset"}));
  Take();
  return Status::Ok();
}

Status Parser::ParseSignature(Macro* macro) {
  KVRUN_RETURN_IF_ERROR(ExpectOperator("("));
  while (!IsOperator(")")) {
    if (!macro->parameters.empty()) KVRUN_RETURN_IF_ERROR(ExpectOperator(","));
    Parameter parameter;
    KVRUN_ASSIGN_OR_RETURN(const std::string name, ParseOwnName());
    parameter.name = Number(name);
    parameter.text = Value::Form(name);
    if (SkipOperator("=")) {
      KVRUN_ASSIGN_OR_RETURN(parameter.otherwise, ParseExpression());
    } else if (!macro->parameters.empty() && macro->parameters.back().otherwise != nullptr) {
      return WrongSyntax(Here().line, "a parameter without a default stands after one with a default");
    }
    macro->parameters.push_back(std::move(parameter));
  }
  return ExpectOperator(")");
}

Status Parser::ParseMacroBody(Macro* macro, std::string_view end) {
  bool outer[kFirstOwnName];
  std::copy(std::begin(reads_special_), std::end(reads_special_), outer);
  std::fill(std::begin(reads_special_), std::end(reads_special_), false);
  KVRUN_ASSIGN_OR_RETURN(macro->body, ParseInFrame({}, {end}));
  Take();
  macro->takes_caller = reads_special_[kCallerName];
  macro->takes_varargs = reads_special_[kVarargsName];
  macro->takes_kwargs = reads_special_[kKwargsName];
  for (size_t i = 0; i < kFirstOwnName; ++i) reads_special_[i] = reads_special_[i] || outer[i];
  return Status::Ok();
}

Status Parser::ParseMacro(Statement* statement) {
  statement->macro = std::make_unique<Macro>();
  KVRUN_ASSIGN_OR_RETURN(const std::string name, ParseOwnName());
  statement->target.name = Number(name);
  statement->macro->name = Value::Form(name);
  KVRUN_RETURN_IF_ERROR(ParseSignature(statement->macro.get()));
  return ParseMacroBody(statement->macro.get(), "endmacro");
}

Status Parser::ParseCallBlock(Statement* statement) {
  statement->macro = std::make_unique<Macro>();
  if (IsOperator("(")) KVRUN_RETURN_IF_ERROR(ParseSignature(statement->macro.get()));
  KVRUN_ASSIGN_OR_RETURN(statement->expression, ParseExpression());
  if (statement->expression->kind != Kind::kCall) {
    return WrongSyntax(statement->line, "{% call %} wants a call");
  }
  return ParseMacroBody(statement->macro.get(), "endcall");
}

Status Parser::ParseFilterBlock(Statement* statement) {
  const Frame outer = frame_;
  frame_.soft = false;
  do {
    KVRUN_ASSIGN_OR_RETURN(statement->expression, ParseFilter(std::move(statement->expression)));
  } while (SkipOperator("|"));
  KVRUN_ASSIGN_OR_RETURN(statement->body, ParseInFrame({false, outer.n_loops}, {"endfilter"}));
  frame_ = outer;
  Take();
  return Status::Ok();
}

Status Parser::ParseWith(Statement* statement) {
  while (!Is(Token::kBlockEnd)) {
    if (!statement->assignments.empty()) KVRUN_RETURN_IF_ERROR(ExpectOperator(","));
    KVRUN_ASSIGN_OR_RETURN(Target target, ParseTarget(false));
    KVRUN_RETURN_IF_ERROR(ExpectOperator("="));
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    statement->assignments.emplace_back(std::move(target), std::move(value));
  }
  KVRUN_ASSIGN_OR_RETURN(statement->body, ParseInFrame({false, frame_.n_loops}, {"endwith"}));
  Take();
  return Status::Ok();
}

Status Parser::ParseGeneration(Statement* statement) {
  statement->macro = std::make_unique<Macro>();
  return ParseMacroBody(statement->macro.get(), "endgeneration");
}

Status Parser::ParseLoopControl(Statement* statement) {
  if (frame_.n_loops > 0) return Status::Ok();
  return WrongSyntax(statement->line, "{% break %} and {% continue %} stand in loops alone");
}

Result<std::unique_ptr<SyntaxTree>> ParseTemplate(std::string_view source) {
  if (source.size() > kMostSourceBytes) {
    return Wrong("it is larger than " + std::to_string(kMostSourceBytes) + " bytes");
  }
  auto tree = std::make_unique<SyntaxTree>();
  tree->source = NormalisedSource(source);
  KVRUN_ASSIGN_OR_RETURN(std::vector<LexedToken> tokens, Lex(tree->source));
  KVRUN_RETURN_IF_ERROR(Parser(std::move(tokens), tree.get()).Parse());
  return tree;
}

}  // namespace kvrun::jinja
