#include "runtime/engine/session/session_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>

namespace kvrun {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// A line is made of fields with a tab between them.
std::string Field(std::string_view text) {
  std::string field(text);
  std::replace_if(
      field.begin(), field.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return field;
}

std::vector<std::string> FieldsOf(std::string_view line) {
  std::vector<std::string> fields;
  for (;;) {
    const size_t tab = std::min(line.find('\t'), line.size());
    fields.emplace_back(line.substr(0, tab));
    if (tab == line.size()) return fields;
    line.remove_prefix(tab + 1);
  }
}

template <typename T>
bool ReadNumber(const std::string& text, T* number) {
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && last == end;
}

// The bits of each number, so that none is rounded.
bool ReadTimes(const std::vector<std::string>& fields, std::optional<FlashTimes>* times) {
  constexpr size_t kShareAt = 4;
  constexpr size_t kPlain = 5;
  constexpr size_t kSealed = 7;
  if (fields.size() != kPlain && fields.size() != kSealed) return false;
  FlashTimes read;
  const std::pair<size_t, double*> values[] = {{1, &read.reads_per_s},
                                               {2, &read.bytes_per_s},
                                               {3, &read.layer_us},
                                               {5, &read.opening.unit_us},
                                               {6, &read.opening.bytes_per_s}};
  for (const auto& [at, value] : values) {
    if (at >= fields.size()) continue;
    uint64_t bits = 0;
    if (!ReadNumber(fields[at], &bits)) return false;
    *value = std::bit_cast<double>(bits);
    if (!std::isfinite(*value) || *value < 0.0) return false;
  }
  read.share_cores = fields[kShareAt] == "1";
  *times = read;
  return true;
}

bool ReadPair(const std::vector<std::string>& fields, Pairs* pairs) {
  if (fields.size() != 3) return false;
  pairs->emplace_back(fields[1], fields[2]);
  return true;
}

// A line that is not known is of a later kvrun, which can do without it.
bool ReadLine(const std::vector<std::string>& fields, SessionIdentity* identity) {
  const std::string& name = fields[0];
  if (name == "given") return ReadPair(fields, &identity->given);
  if (name == "settled") return ReadPair(fields, &identity->settled);
  if (name == "form") return ReadPair(fields, &identity->form);
  if (name == "flash") return ReadTimes(fields, &identity->flash_times);
  if (fields.size() != 2) return true;
  if (name == "model")
    identity->model = fields[1];
  else if (name == "model-name")
    identity->model_name = fields[1];
  else if (name == "sequences")
    return ReadNumber(fields[1], &identity->n_sequences);
  else if (name == "context")
    return ReadNumber(fields[1], &identity->n_ctx);
  else if (name == "room")
    return ReadNumber(fields[1], &identity->room_tokens);
  else if (name == "words")
    identity->words = fields[1];
  return true;
}

constexpr std::string_view kFirstLine = "kvrun session";

}  // namespace

std::string WriteIdentity(const SessionIdentity& identity) {
  std::string text = fmt::format("{}\n", kFirstLine);
  if (!identity.is_begun()) return text;
  const auto add = [&text](std::string_view name, const auto& value) {
    text += fmt::format("{}\t{}\n", name, Field(fmt::format("{}", value)));
  };
  add("model", identity.model);
  add("model-name", identity.model_name);
  add("sequences", identity.n_sequences);
  add("context", identity.n_ctx);
  add("room", identity.room_tokens);
  add("words", identity.words);
  if (const auto& times = identity.flash_times) {
    const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
    text += fmt::format("flash\t{}\t{}\t{}\t{}", bits(times->reads_per_s), bits(times->bytes_per_s),
                        bits(times->layer_us), times->share_cores ? 1 : 0);
    const OpeningTimes& opening = times->opening;
    if (opening.bytes_per_s > 0.0)
      text += fmt::format("\t{}\t{}", bits(opening.unit_us), bits(opening.bytes_per_s));
    text += '\n';
  }
  for (const auto& [kind, pairs] :
       {std::pair("given", &identity.given), std::pair("settled", &identity.settled),
        std::pair("form", &identity.form)}) {
    for (const auto& [name, value] : *pairs)
      text += fmt::format("{}\t{}\t{}\n", kind, Field(name), Field(value));
  }
  return text;
}

Result<SessionIdentity> ReadIdentity(std::string_view text) {
  SessionIdentity identity;
  bool is_first = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool is_read = is_first ? line == kFirstLine : ReadLine(FieldsOf(line), &identity);
    if (!is_read) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("what the session says of itself cannot be read: \"{}\"", Field(line)));
    }
    is_first = false;
  }
  constexpr uint32_t kMostSequences = 16;
  const bool is_whole = !identity.model.empty() && identity.n_sequences > 0 &&
                        identity.n_sequences <= kMostSequences && identity.n_ctx > 0;
  if (is_first || (!is_whole && identity.is_begun())) {
    return Status(StatusCode::kCorrupt, "the session does not say of which model and length it is");
  }
  return identity;
}

// An option of another method than the session's is refused where it is planned.
Status SessionIdentity::Complete(KvSettings* settings, bool with_settled) const {
  for (const auto& [name, value] : given) {
    if (settings->given.contains(name)) continue;
    KVRUN_RETURN_IF_ERROR(SetKvOption(name, value, settings));
  }
  // What was settled was not given: another plan may settle it otherwise.
  const std::map<std::string, std::string> were_given = settings->given;
  for (const auto& [name, value] : settled) {
    if (!with_settled || were_given.contains(name)) continue;
    KVRUN_RETURN_IF_ERROR(SetKvOption(name, value, settings));
  }
  settings->given = were_given;
  return Status::Ok();
}

}  // namespace kvrun
