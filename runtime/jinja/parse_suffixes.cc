// The parser: what stands after a value. Attributes, subscripts, calls, filters and tests.
#include "runtime/jinja/parser.h"

namespace kvrun::jinja {

Result<ExpressionPtr> Parser::ParsePostfix(ExpressionPtr expression) {
  while (true) {
    if (IsOperator(".")) {
      KVRUN_ASSIGN_OR_RETURN(expression, ParseAttribute(std::move(expression)));
    } else if (IsOperator("[")) {
      KVRUN_ASSIGN_OR_RETURN(expression, ParseSubscript(std::move(expression)));
    } else if (IsOperator("(")) {
      KVRUN_ASSIGN_OR_RETURN(expression, ParseCall(std::move(expression)));
    } else {
      return expression;
    }
  }
}

Result<ExpressionPtr> Parser::ParseFilters(ExpressionPtr expression) {
  while (true) {
    if (SkipOperator("|")) {
      KVRUN_ASSIGN_OR_RETURN(expression, ParseFilter(std::move(expression)));
    } else if (IsName("is")) {
      KVRUN_ASSIGN_OR_RETURN(expression, ParseTest(std::move(expression)));
    } else if (IsOperator("(")) {
      KVRUN_ASSIGN_OR_RETURN(expression, ParseCall(std::move(expression)));
    } else {
      return expression;
    }
  }
}

Result<std::string> Parser::ParseDottedName() {
  if (!Is(Token::kName)) return Unexpected();
  std::string name(Take().text);
  while (SkipOperator(".")) {
    if (!Is(Token::kName)) return Unexpected();
    name += "." + std::string(Take().text);
  }
  return name;
}

void Parser::Resolve(Expression* expression, const FunctionDef* function, std::string_view what,
                     const std::string& name) {
  expression->function = function;
  std::string message = "there is no " + std::string(what) + " named '" + name + "'";
  expression->value = Value::Form(function == nullptr ? message : name);
  if (function == nullptr && !frame_.soft) unknown_.emplace_back(expression->line, std::move(message));
}

Result<ExpressionPtr> Parser::ParseFilter(ExpressionPtr input) {
  ExpressionPtr filter = Make(Kind::kFilter, Here().line);
  KVRUN_ASSIGN_OR_RETURN(const std::string name, ParseDottedName());
  Resolve(filter.get(), FindFilter(name), "filter", name);
  if (input != nullptr) filter->parts.push_back(std::move(input));
  if (IsOperator("(")) {
    KVRUN_ASSIGN_OR_RETURN(filter->arguments, ParseArguments());
  }
  return Finish(std::move(filter));
}

Result<ExpressionPtr> Parser::ParseTest(ExpressionPtr input) {
  ExpressionPtr test = Make(Kind::kTest, Take().line);
  const bool is_negated = SkipName("not");
  KVRUN_ASSIGN_OR_RETURN(const std::string name, ParseDottedName());
  Resolve(test.get(), FindTest(name), "test", name);
  test->parts.push_back(std::move(input));
  const bool is_value = Is(Token::kName) || Is(Token::kString) || Is(Token::kInteger) || Is(Token::kFloat) ||
                        IsOperator("[") || IsOperator("{");
  if (IsOperator("(")) {
    KVRUN_ASSIGN_OR_RETURN(test->arguments, ParseArguments());
  } else if (is_value && !IsName("else") && !IsName("or") && !IsName("and")) {
    if (IsName("is")) return Unexpected();
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
    KVRUN_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    test->arguments = std::make_unique<CallArguments>();
    test->arguments->positional.push_back(std::move(argument));
  }
  KVRUN_ASSIGN_OR_RETURN(test, Finish(std::move(test)));
  if (!is_negated) return test;
  ExpressionPtr negation = Make(Kind::kNot, test->line);
  negation->parts.push_back(std::move(test));
  return Finish(std::move(negation));
}

Result<ExpressionPtr> Parser::ParseAttribute(ExpressionPtr object) {
  ExpressionPtr attribute = Make(Kind::kAttribute, Take().line);
  attribute->parts.push_back(std::move(object));
  if (Is(Token::kName)) {
    attribute->value = Value::Form(Take().text);
  } else if (Is(Token::kInteger)) {
    attribute->kind = Kind::kItem;
    KVRUN_ASSIGN_OR_RETURN(ExpressionPtr index, ParseNumber());
    attribute->parts.push_back(std::move(index));
  } else {
    return Unexpected();
  }
  return Finish(std::move(attribute));
}

Result<ExpressionPtr> Parser::ParseSubscript(ExpressionPtr object) {
  ExpressionPtr item = Make(Kind::kItem, Take().line);
  item->parts.push_back(std::move(object));
  ExpressionPtr key;
  if (!IsOperator(":")) {
    KVRUN_ASSIGN_OR_RETURN(key, ParseExpression());
  }
  if (IsOperator(":")) {
    item->kind = Kind::kSlice;
    item->parts.push_back(std::move(key));
    KVRUN_RETURN_IF_ERROR(ParseSlice(item.get()));
  } else if (IsOperator(",")) {
    ExpressionPtr tuple = Make(Kind::kTuple, item->line);
    tuple->parts.push_back(std::move(key));
    while (SkipOperator(",")) {
      KVRUN_ASSIGN_OR_RETURN(ExpressionPtr part, ParseExpression());
      tuple->parts.push_back(std::move(part));
    }
    KVRUN_ASSIGN_OR_RETURN(tuple, Finish(std::move(tuple)));
    item->parts.push_back(std::move(tuple));
  } else {
    item->parts.push_back(std::move(key));
  }
  KVRUN_RETURN_IF_ERROR(ExpectOperator("]"));
  return Finish(std::move(item));
}

Status Parser::ParseSlice(Expression* slice) {
  for (int i = 0; i < 2; ++i) {
    ExpressionPtr bound;
    if (SkipOperator(":") && !IsOperator(":") && !IsOperator("]")) {
      KVRUN_ASSIGN_OR_RETURN(bound, ParseExpression());
    }
    slice->parts.push_back(std::move(bound));
  }
  return Status::Ok();
}

Result<ExpressionPtr> Parser::ParseCall(ExpressionPtr callee) {
  ExpressionPtr call = Make(Kind::kCall, Here().line);
  call->parts.push_back(std::move(callee));
  KVRUN_ASSIGN_OR_RETURN(call->arguments, ParseArguments());
  return Finish(std::move(call));
}

Result<std::unique_ptr<CallArguments>> Parser::ParseArguments() {
  const uint32_t line = Take().line;
  auto arguments = std::make_unique<CallArguments>();
  const auto wrong = [line] { return WrongSyntax(line, "arguments stand in a wrong order"); };
  bool is_first = true;
  while (!IsOperator(")")) {
    if (!is_first) KVRUN_RETURN_IF_ERROR(ExpectOperator(","));
    if (IsOperator(")")) break;
    is_first = false;
    if (SkipOperator("*")) {
      if (arguments->all_positional != nullptr || arguments->all_named != nullptr) return wrong();
      KVRUN_ASSIGN_OR_RETURN(arguments->all_positional, ParseExpression());
    } else if (SkipOperator("**")) {
      if (arguments->all_named != nullptr) return wrong();
      KVRUN_ASSIGN_OR_RETURN(arguments->all_named, ParseExpression());
    } else if (Is(Token::kName) && After().token == Token::kOperator && After().text == "=") {
      if (arguments->all_named != nullptr) return wrong();
      Value name = Value::Form(Take().text);
      Take();
      KVRUN_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      arguments->named.emplace_back(std::move(name), std::move(value));
    } else {
      if (arguments->all_positional != nullptr || arguments->all_named != nullptr ||
          !arguments->named.empty()) {
        return wrong();
      }
      KVRUN_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      arguments->positional.push_back(std::move(value));
    }
  }
  KVRUN_RETURN_IF_ERROR(ExpectOperator(")"));
  return arguments;
}

}  // namespace kvrun::jinja
