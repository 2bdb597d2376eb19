// json.dumps of Python, as Hugging Face's tojson calls it.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/jinja/functions.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

class JsonWriter {
 public:
  explicit JsonWriter(Run& run) : run_(run) {}

  Status SetUp(const Args& args) {
    ascii_only_ = args.IsTrueOr(0, false);
    const Value& indent = args[1];
    if (args.Has(1) && !indent.Is(Kind::kNone)) {
      has_indent_ = true;
      if (indent.is_string()) {
        indent_ = indent.text();
      } else {
        KVRUN_ASSIGN_OR_RETURN(const int64_t width, args.Integer(1, 0));
        if (width > 1000) return Wrong("tojson's indent is too large");
        indent_ = MarkedText::Form(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '));
      }
      item_separator_ = MarkedText::Form(",");
    }
    if (args.Has(2) && !args[2].Is(Kind::kNone)) {
      KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> separators, ElementsOf(run_, args[2]));
      if (separators.size() != 2) return Wrong("tojson wants two separators");
      KVRUN_ASSIGN_OR_RETURN(const MarkedText* const item, StringOf(separators[0]));
      KVRUN_ASSIGN_OR_RETURN(const MarkedText* const key, StringOf(separators[1]));
      item_separator_ = *item;
      key_separator_ = *key;
    }
    sorts_keys_ = args.IsTrueOr(3, false);
    return Status::Ok();
  }

  Status Write(const Value& value) {
    const Descent descent(run_);
    KVRUN_RETURN_IF_ERROR(descent.Check());
    KVRUN_RETURN_IF_ERROR(run_.Step());
    KVRUN_RETURN_IF_ERROR(run_.Take(16));
    switch (value.kind()) {
      case Kind::kString: return WriteString(value.text());
      case Kind::kList:
      case Kind::kTuple: return WriteList(value.items());
      case Kind::kDict: return WriteDict(value.dict());
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat: text_.AppendForm(Scalar(value)); return Status::Ok();
      default: return Wrong("a " + std::string(TypeName(value)) + " has no JSON");
    }
  }

  MarkedText& text() { return text_; }

 private:
  static std::string Scalar(const Value& value) {
    if (value.Is(Kind::kNone)) return "null";
    if (value.Is(Kind::kBool)) return value.boolean() ? "true" : "false";
    if (value.Is(Kind::kInt)) return std::to_string(value.integer());
    if (std::isnan(value.real())) return "NaN";
    if (std::isinf(value.real())) return value.real() < 0 ? "-Infinity" : "Infinity";
    return FloatText(value.real());
  }

  static void AppendUnit(uint32_t unit, std::string* escaped) {
    char escape[16];
    std::snprintf(escape, sizeof(escape), "\\u%04x", unit);
    *escaped += escape;
  }

  void AppendEscaped(const Character& character, std::string_view bytes, std::string* escaped) const {
    const uint32_t code = character.code;
    constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f";
    if (const size_t i = code < 0x80 ? kSpecial.find(static_cast<char>(code)) : kSpecial.npos;
        i != kSpecial.npos) {
      *escaped += {'\\', "\"\\nrtbf"[i]};
    } else if (code < 0x20 || (ascii_only_ && code > 0x7e && code < 0x10000)) {
      AppendUnit(code, escaped);
    } else if (ascii_only_ && code >= 0x10000) {
      AppendUnit(0xd800 + ((code - 0x10000) >> 10), escaped);
      AppendUnit(0xdc00 + ((code - 0x10000) & 0x3ff), escaped);
    } else {
      *escaped += bytes;
    }
  }

  Status WriteString(const MarkedText& string) {
    const std::string_view bytes = string.bytes();
    KVRUN_RETURN_IF_ERROR(run_.Take(bytes.size()));
    text_.AppendForm("\"");
    for (size_t position = 0; position < bytes.size();) {
      // Stretches of one mark are written at once.
      const bool is_content = string.IsContent(position);
      std::string escaped;
      while (position < bytes.size() && string.IsContent(position) == is_content) {
        const Character character = CharacterAt(bytes, position);
        AppendEscaped(character, bytes.substr(position, character.n_bytes), &escaped);
        position += character.n_bytes;
      }
      text_.Append(escaped, is_content);
    }
    text_.AppendForm("\"");
    return Status::Ok();
  }

  Status NewLine() {
    if (!has_indent_) return Status::Ok();
    KVRUN_RETURN_IF_ERROR(run_.Take(1 + level_ * indent_.size()));
    text_.AppendForm("\n");
    for (size_t i = 0; i < level_; ++i) text_.Append(indent_);
    return Status::Ok();
  }

  Status Between(bool is_first) {
    if (!is_first) text_.Append(item_separator_);
    return NewLine();
  }

  Status WriteList(const std::vector<Value>& items) {
    text_.AppendForm("[");
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      KVRUN_RETURN_IF_ERROR(Between(i == 0));
      KVRUN_RETURN_IF_ERROR(Write(items[i]));
    }
    --level_;
    if (!items.empty()) KVRUN_RETURN_IF_ERROR(NewLine());
    text_.AppendForm("]");
    return Status::Ok();
  }

  Status WriteKey(const Value& key) {
    if (key.is_string()) {
      KVRUN_RETURN_IF_ERROR(WriteString(key.text()));
    } else if (key.is_number() || key.Is(Kind::kNone)) {
      text_.AppendForm("\"" + Scalar(key) + "\"");
    } else {
      return Wrong("a " + std::string(TypeName(key)) + " is no key of JSON");
    }
    text_.Append(key_separator_);
    return Status::Ok();
  }

  Status WriteDict(const Dict& dict) {
    std::vector<Pair> entries = dict.entries;
    if (sorts_keys_) {
      std::vector<Value> keys;
      for (const Pair& entry : entries) keys.push_back(entry.first);
      KVRUN_ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(run_, keys, false));
      for (size_t i = 0; i < order.size(); ++i) entries[i] = dict.entries[order[i]];
    }
    text_.AppendForm("{");
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      KVRUN_RETURN_IF_ERROR(Between(i == 0));
      KVRUN_RETURN_IF_ERROR(WriteKey(entries[i].first));
      KVRUN_RETURN_IF_ERROR(Write(entries[i].second));
    }
    --level_;
    if (!entries.empty()) KVRUN_RETURN_IF_ERROR(NewLine());
    text_.AppendForm("}");
    return Status::Ok();
  }

  Run& run_;
  MarkedText text_;
  bool ascii_only_ = false;
  bool has_indent_ = false;
  bool sorts_keys_ = false;
  MarkedText indent_;
  MarkedText item_separator_ = MarkedText::Form(", ");
  MarkedText key_separator_ = MarkedText::Form(": ");
  size_t level_ = 0;
};

}  // namespace

Result<Value> ToJson(Run& run, const Value& self, const Args& args) {
  JsonWriter writer(run);
  KVRUN_RETURN_IF_ERROR(writer.SetUp(args));
  KVRUN_RETURN_IF_ERROR(writer.Write(self));
  return run.MakeString(std::move(writer.text()));
}

}  // namespace kvrun::jinja
