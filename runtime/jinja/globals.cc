// Functions that every template sees.
#include "runtime/jinja/evaluate.h"

namespace kvrun::jinja {
namespace {

constexpr int64_t kLongestRange = 100000;  // as Jinja's sandbox has it

Result<Value> GlobalRange(Run&, const Value&, const Args& args) {
  const bool has_stop = args.Has(1);
  KVRUN_ASSIGN_OR_RETURN(const int64_t first, args.Integer(0, 0));
  KVRUN_ASSIGN_OR_RETURN(const int64_t second, args.Integer(1, 0));
  KVRUN_ASSIGN_OR_RETURN(const int64_t step, args.Integer(2, 1));
  const int64_t start = has_stop ? first : 0;
  const int64_t stop = has_stop ? second : first;
  if (step == 0) return Wrong("the step of range() is 0");
  int64_t distance = 0;
  if (step == INT64_MIN || (step > 0 ? __builtin_sub_overflow(stop, start, &distance)
                                     : __builtin_sub_overflow(start, stop, &distance))) {
    return Wrong("range() is too large");
  }
  const int64_t n = distance <= 0 ? 0 : (distance - 1) / (step > 0 ? step : -step) + 1;
  if (n > kLongestRange) return Wrong("range() has more than " + std::to_string(kLongestRange) + " numbers");
  Range range;
  range.start = start;
  range.stop = stop;
  range.step = step;
  range.n = n;
  return MakeRange(range);
}

// What dict() and namespace() take: a dict or pairs, and named values.
Result<Value> DictOf(Run& run, const Args& args) {
  std::vector<Pair> entries;
  if (args.positional().size() > 1) return Wrong("dict() takes one value, and named ones");
  if (!args.positional().empty()) {
    const Value& source = args.positional()[0];
    if (source.Is(Kind::kDict)) {
      entries = source.dict().entries;
    } else {
      if (source.Is(Kind::kUndefined)) return Wrong(source.why_undefined());
      KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run, source));
      for (const Value& element : elements) {
        KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> pair, ElementsOf(run, element));
        if (pair.size() != 2) return Wrong("dict() wants pairs");
        entries.emplace_back(pair[0], pair[1]);
      }
    }
  }
  entries.insert(entries.end(), args.named().begin(), args.named().end());
  return MakeDict(run, entries);
}

Result<Value> GlobalDict(Run& run, const Value&, const Args& args) { return DictOf(run, args); }

Result<Value> GlobalNamespace(Run& run, const Value&, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const Value dict, DictOf(run, args));
  auto name_space = std::make_shared<Namespace>();
  for (const Pair& entry : dict.dict().entries) {
    if (entry.first.is_string()) name_space->attributes.push_back(entry);
  }
  run.Retain(name_space);
  return Value(Kind::kNamespace, std::move(name_space));
}

Result<Value> GlobalRaise(Run& run, const Value&, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText message, TextOf(run, args[0]));
  return Wrong("the template refuses this: " + Excerpt(message.bytes()));
}

Result<Value> GlobalTime(Run& run, const Value&, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText* const format, StringOf(args[0]));
  return FormattedTime(run, *format);
}

Result<Value> MakeCycler(Run& run, std::vector<Value> items) {
  KVRUN_ASSIGN_OR_RETURN(const Value list, MakeList(run, std::move(items)));
  auto cycler = std::make_shared<Cycler>();
  cycler->items = list.items();
  cycler->depth = list.depth();
  return Value(Kind::kCycler, std::move(cycler));
}

Result<Value> GlobalCycler(Run& run, const Value&, const Args& args) {
  if (!args.named().empty() || args.positional().empty()) return Wrong("cycler() wants values");
  return MakeCycler(run, args.positional());
}

Result<Value> NextOfCycler(Run&, const Value& self, const Args&) {
  Cycler& cycler = self.cycler();
  const size_t position = cycler.position;
  cycler.position = (position + 1) % cycler.items.size();
  return cycler.items[position];
}

Result<Value> ResetCycler(Run&, const Value& self, const Args&) {
  self.cycler().position = 0;
  return Value::None();
}

// Nothing at first, then the separator each time.
Result<Value> CallJoiner(Run&, const Value& self, const Args&) {
  if (std::exchange(self.cycler().position, 1) == 0) return Value::Form("");
  return self.cycler().items[0];
}

constexpr FunctionDef kJoiner = {"joiner", CallJoiner, "", 0};

Result<Value> GlobalJoiner(Run& run, const Value&, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const Value state, MakeCycler(run, {args.Has(0) ? args[0] : Value::Form(", ")}));
  return MakeCallable(run, &kJoiner, state);
}

constexpr FunctionDef kGlobals[] = {
    {"range", GlobalRange, "/start,stop,step", 1},
    {"dict", GlobalDict, "*", 0},
    {"namespace", GlobalNamespace, "*", 0},
    {"raise_exception", GlobalRaise, "message", 1},
    {"strftime_now", GlobalTime, "format", 1},
    {"cycler", GlobalCycler, "*", 0},
    {"joiner", GlobalJoiner, "sep", 0},
};

constexpr FunctionDef kCyclerMethods[] = {{"next", NextOfCycler, "", 0}, {"reset", ResetCycler, "", 0}};

}  // namespace

std::span<const FunctionDef> Globals() { return kGlobals; }
std::span<const FunctionDef> CyclerMethods() { return kCyclerMethods; }

}  // namespace kvrun::jinja
