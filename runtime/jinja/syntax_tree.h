// What the parser makes of a template. Internal to the templates' interpreter.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/jinja/functions.h"
#include "runtime/jinja/run.h"

namespace kvrun::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<std::unique_ptr<Statement>>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<Value, ExpressionPtr>> named;
  ExpressionPtr all_positional;  // *x
  ExpressionPtr all_named;       // **x
};

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kIn,
  kNotIn,
};

struct Expression {
  enum class Kind : uint8_t {
    kConstant,     // value
    kName,         // name
    kAttribute,    // parts[0] . value
    kItem,         // parts[0] [ parts[1] ]
    kSlice,        // parts[0] [ parts[1] : parts[2] : parts[3] ], each of the three may be null
    kCall,         // parts[0] ( arguments )
    kFilter,       // parts[0] | function ( arguments ); no part in a filter block
    kTest,         // parts[0] is function ( arguments )
    kList,         // parts
    kTuple,        // parts
    kDict,         // parts: key, value, key, value
    kNot,          // parts[0]
    kNegative,     // parts[0]
    kPositive,     // parts[0]
    kAnd,          // parts
    kOr,           // parts
    kConcat,       // parts
    kArithmetic,   // parts[0] operators[0] parts[1] operators[1] ..., from the left
    kCompare,      // the same as a chain
    kConditional,  // parts[0] if parts[1] else parts[2], which may be null
  };

  Kind kind = Kind::kConstant;
  uint32_t line = 1;
  NameNumber name = 0;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<Operator> operators;
  std::unique_ptr<CallArguments> arguments;
  const FunctionDef* function = nullptr;  // null: unknown; value is its name
  uint32_t depth = 1;                     // of expressions, one in the other
};

// What an assignment writes to: a name, an attribute of a namespace, or several.
struct Target {
  NameNumber name = 0;
  Value attribute;  // kMissing: the name itself
  std::vector<Target> targets;
  bool is_tuple = false;
};

struct Parameter {
  NameNumber name = 0;
  Value text;  // its name
  ExpressionPtr otherwise;
};

struct Macro {
  Value name;
  std::vector<Parameter> parameters;
  bool takes_caller = false;
  bool takes_varargs = false;
  bool takes_kwargs = false;
  Body body;
};

struct Statement {
  enum class Kind : uint8_t {
    kText,        // text
    kOutput,      // expression
    kFor,         // target in expression if test: body, else otherwise
    kIf,          // branches
    kSet,         // target = expression
    kSetBlock,    // target = body, expression is its filter, or null
    kMacro,       // macro is the one's target name
    kCall,        // call expression with macro as caller
    kFilter,      // body through expression
    kWith,        // assignments, body
    kGeneration,  // macro, which takes nothing
    kBreak,
    kContinue,
  };
  struct Branch {
    ExpressionPtr test;  // null: else
    Body body;
  };

  Kind kind = Kind::kText;
  uint32_t line = 1;
  MarkedText text;
  Target target;
  ExpressionPtr expression;
  ExpressionPtr test;
  bool is_recursive = false;
  Body body;
  Body otherwise;
  std::vector<Branch> branches;
  std::unique_ptr<Macro> macro;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
};

// Names that the interpreter itself sets.
enum SpecialName : NameNumber { kLoopName, kCallerName, kVarargsName, kKwargsName, kFirstOwnName };

struct SyntaxTree {
  std::string source;
  Body body;
  std::vector<std::string> names;  // of each number
  std::vector<bool> is_read;       // for each number: somewhere
  std::vector<std::string> form_texts;
};

Result<std::unique_ptr<SyntaxTree>> ParseTemplate(std::string_view source);

}  // namespace kvrun::jinja
