// The parser's expressions, in the order in which operators bind.
#include <algorithm>
#include <cstdlib>

#include "runtime/jinja/parser.h"

namespace kvrun::jinja {
namespace {

constexpr uint32_t kMostExpressionDepth = 200;

uint32_t DepthOfPart(const ExpressionPtr& part) { return part == nullptr ? 0 : part->depth; }

std::string WithoutUnderscores(std::string_view number) {
  std::string digits(number);
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  return digits;
}

}  // namespace

ExpressionPtr Parser::Make(Kind kind, uint32_t line) const {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  return expression;
}

Result<ExpressionPtr> Parser::Finish(ExpressionPtr expression) const {
  uint32_t depth = 0;
  for (const ExpressionPtr& part : expression->parts) depth = std::max(depth, DepthOfPart(part));
  if (const CallArguments* const arguments = expression->arguments.get(); arguments != nullptr) {
    for (const ExpressionPtr& argument : arguments->positional)
      depth = std::max(depth, DepthOfPart(argument));
    for (const auto& [name, argument] : arguments->named) depth = std::max(depth, DepthOfPart(argument));
    depth = std::max({depth, DepthOfPart(arguments->all_positional), DepthOfPart(arguments->all_named)});
  }
  expression->depth = depth + 1;
  if (expression->depth <= kMostExpressionDepth) return expression;
  return WrongSyntax(expression->line, "an expression is nested too deeply");
}

Result<ExpressionPtr> Parser::ParseTuple(bool with_conditional, bool in_brackets) {
  ExpressionPtr tuple = Make(Kind::kTuple, Here().line);
  const auto is_end = [&] {
    return Is(Token::kVariableEnd) || Is(Token::kBlockEnd) || IsOperator(")") ||
           (!with_conditional && IsName("recursive"));
  };
  bool is_tuple = false;
  while (!is_end()) {
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr part, ParseExpression(with_conditional));
    tuple->parts.push_back(std::move(part));
    if (!SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !tuple->parts.empty()) return std::move(tuple->parts[0]);
  if (!is_tuple && !in_brackets) return Unexpected();
  return Finish(std::move(tuple));
}

Result<ExpressionPtr> Parser::ParseExpression(bool with_conditional) {
  const Nesting nesting(this);
  KVRUN_RETURN_IF_ERROR(nesting.Check());
  return with_conditional ? ParseConditional() : ParseOr();
}

Result<ExpressionPtr> Parser::ParseConditional() {
  const Nesting nesting(this);
  KVRUN_RETURN_IF_ERROR(nesting.Check());
  const size_t n_unknown = unknown_.size();
  const uint32_t line = Here().line;
  KVRUN_ASSIGN_OR_RETURN(ExpressionPtr expression, ParseOr());
  while (SkipName("if")) {
    ExpressionPtr conditional = Make(Kind::kConditional, line);
    conditional->parts.push_back(std::move(expression));
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr test, ParseOr());
    conditional->parts.push_back(std::move(test));
    ExpressionPtr otherwise;
    if (SkipName("else")) {
      KVRUN_ASSIGN_OR_RETURN(otherwise, ParseConditional());
    }
    conditional->parts.push_back(std::move(otherwise));
    KVRUN_ASSIGN_OR_RETURN(expression, Finish(std::move(conditional)));
    unknown_.resize(n_unknown);
  }
  return expression;
}

Result<ExpressionPtr> Parser::Chain(ExpressionPtr first, Kind kind,
                                    std::initializer_list<std::string_view> words,
                                    Result<ExpressionPtr> (Parser::*next)()) {
  const auto skip = [&] {
    return std::any_of(words.begin(), words.end(),
                       [this](std::string_view word) { return SkipName(word) || SkipOperator(word); });
  };
  if (!skip()) return first;
  ExpressionPtr chain = Make(kind, first->line);
  chain->parts.push_back(std::move(first));
  do {
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr part, (this->*next)());
    chain->parts.push_back(std::move(part));
  } while (skip());
  return Finish(std::move(chain));
}

Result<ExpressionPtr> Parser::ParseOr() {
  KVRUN_ASSIGN_OR_RETURN(ExpressionPtr first, ParseAnd());
  return Chain(std::move(first), Kind::kOr, {"or"}, &Parser::ParseAnd);
}

Result<ExpressionPtr> Parser::ParseAnd() {
  KVRUN_ASSIGN_OR_RETURN(ExpressionPtr first, ParseNot());
  return Chain(std::move(first), Kind::kAnd, {"and"}, &Parser::ParseNot);
}

Result<ExpressionPtr> Parser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  const Nesting nesting(this);
  KVRUN_RETURN_IF_ERROR(nesting.Check());
  ExpressionPtr negation = Make(Kind::kNot, Take().line);
  KVRUN_ASSIGN_OR_RETURN(ExpressionPtr part, ParseNot());
  negation->parts.push_back(std::move(part));
  return Finish(std::move(negation));
}

bool Parser::SkipArithmetic(std::initializer_list<std::pair<std::string_view, Operator>> operators,
                            Operator* found) {
  for (const auto& [text, meaning] : operators) {
    if (!SkipOperator(text)) continue;
    *found = meaning;
    return true;
  }
  return false;
}

bool Parser::SkipComparison(Operator* found) {
  if (IsName("not") && After().token == Token::kName && After().text == "in") {
    Take();
    Take();
    *found = Operator::kNotIn;
    return true;
  }
  if (SkipName("in")) {
    *found = Operator::kIn;
    return true;
  }
  return SkipArithmetic({{"==", Operator::kEqual},
                         {"!=", Operator::kNotEqual},
                         {"<", Operator::kLess},
                         {"<=", Operator::kLessOrEqual},
                         {">", Operator::kGreater},
                         {">=", Operator::kGreaterOrEqual}},
                        found);
}

Result<ExpressionPtr> Parser::ParseCompare() {
  KVRUN_ASSIGN_OR_RETURN(ExpressionPtr first, ParseSum());
  Operator found{};
  if (!SkipComparison(&found)) return first;
  ExpressionPtr chain = Make(Kind::kCompare, first->line);
  chain->parts.push_back(std::move(first));
  do {
    chain->operators.push_back(found);
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr part, ParseSum());
    chain->parts.push_back(std::move(part));
  } while (SkipComparison(&found));
  return Finish(std::move(chain));
}

Result<ExpressionPtr> Parser::ParseSum() {
  KVRUN_ASSIGN_OR_RETURN(ExpressionPtr first, ParseConcat());
  ExpressionPtr chain;
  Operator found{};
  while (SkipArithmetic({{"+", Operator::kAdd}, {"-", Operator::kSubtract}}, &found)) {
    if (chain == nullptr) {
      chain = Make(Kind::kArithmetic, first->line);
      chain->parts.push_back(std::move(first));
    }
    chain->operators.push_back(found);
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr part, ParseConcat());
    chain->parts.push_back(std::move(part));
  }
  return chain == nullptr ? Result<ExpressionPtr>(std::move(first)) : Finish(std::move(chain));
}

Result<ExpressionPtr> Parser::ParseConcat() {
  KVRUN_ASSIGN_OR_RETURN(ExpressionPtr first, ParseProduct());
  return Chain(std::move(first), Kind::kConcat, {"~"}, &Parser::ParseProduct);
}

Result<ExpressionPtr> Parser::ParseProduct() {
  KVRUN_ASSIGN_OR_RETURN(ExpressionPtr first, ParsePower());
  ExpressionPtr chain;
  Operator found{};
  while (SkipArithmetic({{"*", Operator::kMultiply},
                         {"/", Operator::kDivide},
                         {"//", Operator::kFloorDivide},
                         {"%", Operator::kModulo}},
                        &found)) {
    if (chain == nullptr) {
      chain = Make(Kind::kArithmetic, first->line);
      chain->parts.push_back(std::move(first));
    }
    chain->operators.push_back(found);
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr part, ParsePower());
    chain->parts.push_back(std::move(part));
  }
  return chain == nullptr ? Result<ExpressionPtr>(std::move(first)) : Finish(std::move(chain));
}

Result<ExpressionPtr> Parser::ParsePower() {
  KVRUN_ASSIGN_OR_RETURN(ExpressionPtr first, ParseUnary(true));
  if (!IsOperator("**")) return first;
  ExpressionPtr chain = Make(Kind::kArithmetic, first->line);
  chain->parts.push_back(std::move(first));
  while (SkipOperator("**")) {
    chain->operators.push_back(Operator::kPower);
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr part, ParseUnary(true));
    chain->parts.push_back(std::move(part));
  }
  return Finish(std::move(chain));
}

Result<ExpressionPtr> Parser::ParseUnary(bool with_filter) {
  const Nesting nesting(this);
  KVRUN_RETURN_IF_ERROR(nesting.Check());
  ExpressionPtr expression;
  if (IsOperator("-") || IsOperator("+")) {
    const LexedToken& sign = Take();
    expression = Make(sign.text == "-" ? Kind::kNegative : Kind::kPositive, sign.line);
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr part, ParseUnary(false));
    expression->parts.push_back(std::move(part));
    KVRUN_ASSIGN_OR_RETURN(expression, Finish(std::move(expression)));
  } else {
    KVRUN_ASSIGN_OR_RETURN(expression, ParsePrimary());
  }
  KVRUN_ASSIGN_OR_RETURN(expression, ParsePostfix(std::move(expression)));
  return with_filter ? ParseFilters(std::move(expression)) : std::move(expression);
}

Result<ExpressionPtr> Parser::ParsePrimary() {
  switch (Here().token) {
    case Token::kName: return ParseName();
    case Token::kString: return ParseStrings();
    case Token::kInteger:
    case Token::kFloat: return ParseNumber();
    default: break;
  }
  if (IsOperator("[")) return ParseList();
  if (IsOperator("{")) return ParseDict();
  if (!SkipOperator("(")) return Unexpected();
  KVRUN_ASSIGN_OR_RETURN(ExpressionPtr tuple, ParseTuple(true, true));
  KVRUN_RETURN_IF_ERROR(ExpectOperator(")"));
  return tuple;
}

Result<ExpressionPtr> Parser::ParseName() {
  const LexedToken& token = Take();
  ExpressionPtr expression = Make(Kind::kConstant, token.line);
  if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
    expression->value = Value::Bool(token.text == "true" || token.text == "True");
  } else if (token.text == "none" || token.text == "None") {
    expression->value = Value::None();
  } else {
    expression->kind = Kind::kName;
    expression->name = Number(token.text);
    tree_->is_read[expression->name] = true;
    if (expression->name < kFirstOwnName) reads_special_[expression->name] = true;
  }
  return expression;
}

Result<ExpressionPtr> Parser::ParseStrings() {
  ExpressionPtr expression = Make(Kind::kConstant, Here().line);
  std::string text;
  while (Is(Token::kString)) {
    KVRUN_ASSIGN_OR_RETURN(const std::string part, UnescapedString(Take()));
    text += part;
  }
  if (!text.empty()) tree_->form_texts.push_back(text);
  expression->value = Value::Form(text);
  return expression;
}

Result<ExpressionPtr> Parser::ParseNumber() {
  const LexedToken& token = Take();
  ExpressionPtr expression = Make(Kind::kConstant, token.line);
  const std::string digits = WithoutUnderscores(token.text);
  if (token.token == Token::kFloat) {
    expression->value = Value::Float(std::strtod(digits.c_str(), nullptr));
    return expression;
  }
  const char mark = digits.size() > 1 ? static_cast<char>(digits[1] | 0x20) : ' ';
  const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
  errno = 0;
  const long long number = std::strtoll(digits.c_str() + (base == 10 ? 0 : 2), nullptr, base);
  if (errno != 0) return WrongSyntax(token.line, "the number " + digits.substr(0, 30) + " is too large");
  expression->value = Value::Int(number);
  return expression;
}

Result<ExpressionPtr> Parser::ParseList() {
  ExpressionPtr list = Make(Kind::kList, Take().line);
  while (!IsOperator("]")) {
    if (!list->parts.empty()) KVRUN_RETURN_IF_ERROR(ExpectOperator(","));
    if (IsOperator("]")) break;
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr part, ParseExpression());
    list->parts.push_back(std::move(part));
  }
  KVRUN_RETURN_IF_ERROR(ExpectOperator("]"));
  return Finish(std::move(list));
}

Result<ExpressionPtr> Parser::ParseDict() {
  ExpressionPtr dict = Make(Kind::kDict, Take().line);
  while (!IsOperator("}")) {
    if (!dict->parts.empty()) KVRUN_RETURN_IF_ERROR(ExpectOperator(","));
    if (IsOperator("}")) break;
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
    KVRUN_RETURN_IF_ERROR(ExpectOperator(":"));
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    dict->parts.push_back(std::move(key));
    dict->parts.push_back(std::move(value));
  }
  KVRUN_RETURN_IF_ERROR(ExpectOperator("}"));
  return Finish(std::move(dict));
}

}  // namespace kvrun::jinja
