#include "apps/kvrun/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/common/plural.h"
#include "apps/common/printable.h"

namespace kvrun::cli {
namespace {

double NumberOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

uint64_t CountOf(const Json& object, const char* key) { return static_cast<uint64_t>(NumberOf(object, key)); }

// What the device holds; of the process and of both together MemorySummary speaks.
std::string MemoryText(const Json& memory) {
  std::string text;
  for (const auto& [part, bytes] : memory.items()) {
    if (!bytes.is_number() || part == "process" || part == "process_peak" || part == "all") continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part, FormatBytes(bytes.get<uint64_t>()));
  }
  return text;
}

std::string OperationsText(const Json& operations) {
  std::vector<Json> sorted(operations.begin(), operations.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Json& a, const Json& b) { return NumberOf(a, "ms") > NumberOf(b, "ms"); });
  std::string text = fmt::format("{:>12} {:>10}  operation\n", "ms", "count");
  for (const Json& operation : sorted) {
    text += fmt::format("{:>12.3f} {:>10.0f}  {}\n", NumberOf(operation, "ms"), NumberOf(operation, "count"),
                        TextOf(operation.value("name", Json())));
  }
  return text;
}

bool HasNumber(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number();
}

std::string BytesOf(const Json& object, const char* key) {
  return FormatBytes(static_cast<uint64_t>(NumberOf(object, key)));
}

const char* PeakKey(const Json& kv) {
  return NumberOf(kv, "prefill_bytes") > NumberOf(kv, "decode_bytes") ? "prefill_bytes" : "decode_bytes";
}

// What a phase's memory consists of: phases take turns, and share the budget.
std::string PartsText(const char* label, const Json& kv, const char* phase, const char* total) {
  std::string parts;
  for (const Json& part : kv.value("parts", Json::array())) {
    if (!part.value(phase, false)) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", TextOf(part.value("name", Json())),
                         BytesOf(part, "bytes"));
  }
  return parts.empty() ? "" : fmt::format("{} {}: {}\n", label, BytesOf(kv, total), parts);
}

std::string KvSizesText(const Json& kv) {
  std::string text =
      fmt::format("kv       {}: {}", TextOf(kv.value("method", Json("unknown"))), BytesOf(kv, PeakKey(kv)));
  if (HasNumber(kv, "budget_bytes")) text += fmt::format(" (budget {})", BytesOf(kv, "budget_bytes"));
  text += fmt::format(" for {} of f16\n", BytesOf(kv, "full_bytes"));
  return text + PartsText("decoding", kv, "decode", "decode_bytes") +
         PartsText("prefill ", kv, "prefill", "prefill_bytes");
}

// "KV 3.4 MiB of a budget of 4.0 MiB (27.0 MiB as f16), 140.2 MiB in all".
std::string MemorySummary(const Json& stats) {
  const Json memory = stats.value("memory", Json::object());
  const std::string all = BytesOf(memory, HasNumber(memory, "all") ? "all" : "total") + " in all";
  const auto kv = stats.find("kv");
  if (kv == stats.end() || !kv->is_object()) {
    return HasNumber(memory, "kv") ? fmt::format("KV {}, {}", BytesOf(memory, "kv"), all) : all;
  }
  std::string text = "KV " + BytesOf(*kv, PeakKey(*kv));
  if (HasNumber(*kv, "budget_bytes")) {
    text += fmt::format(" of a budget of {} ({} as f16)", BytesOf(*kv, "budget_bytes"),
                        BytesOf(*kv, "full_bytes"));
  }
  return text + ", " + all;
}

std::string SpeedText(const Json& stats) {
  std::string speed =
      fmt::format("prompt {} at {:.1f} token/s", Counted(CountOf(stats, "prefill_tokens"), "token"),
                  NumberOf(stats, "prefill_tps"));
  if (const uint64_t n_cached = CountOf(stats, "cached_tokens"); n_cached > 0) {
    speed += fmt::format(" after {} that {} there", n_cached, n_cached == 1 ? "was" : "were");
  }
  if (const uint64_t n_tokens = CountOf(stats, "answer_tokens"); n_tokens > 0) {
    speed += ", answer " + Counted(n_tokens, "token");
    // The first token comes from the prompt.
    if (NumberOf(stats, "decode_tokens") > 0)
      speed += fmt::format(" at {:.1f} token/s", NumberOf(stats, "decode_tps"));
  }
  if (NumberOf(stats, "ttft_ms") > 0)
    speed += fmt::format(", the first after {:.2f} s", NumberOf(stats, "ttft_ms") / 1e3);
  if (const uint64_t n_tokens = CountOf(stats, "recomputed_tokens"); n_tokens > 0)
    speed += fmt::format(", {} before that computed again", Counted(n_tokens, "token"));
  return speed;
}

std::string KvFlashText(const Json& kv) {
  std::string text;
  if (NumberOf(kv, "reads") > 0) {
    text += fmt::format("read     {} in {:.0f} reads of {}, {:.1f} MB/s", BytesOf(kv, "read_bytes"),
                        NumberOf(kv, "reads"), BytesOf(kv, "mean_read_bytes"), NumberOf(kv, "read_mbps"));
    text += fmt::format(" ({})\n", TextOf(kv.value("io_mode", Json("unknown"))));
  }
  if (NumberOf(kv, "bytes_written") > 0) text += fmt::format("written  {}\n", BytesOf(kv, "bytes_written"));
  if (HasNumber(kv, "hit_rate")) {
    const double n_chosen = NumberOf(kv, "chosen_groups");
    text += fmt::format("groups   {:.0f} chosen, {:.1f} % of them in memory", n_chosen,
                        NumberOf(kv, "hit_rate") * 100.0);
    if (NumberOf(kv, "pool_reads") > 0) {
      text += fmt::format(", {:.1f} % read into the pool", NumberOf(kv, "pool_reads") / n_chosen * 100.0);
    }
    const Json entries = kv.value("entries_per_layer", Json::object());
    if (HasNumber(entries, "mean")) {
      text += fmt::format("; {:.0f} entries per layer ({:.0f} to {:.0f})", NumberOf(entries, "mean"),
                          NumberOf(entries, "least"), NumberOf(entries, "most"));
    }
    text += '\n';
  }
  if (HasNumber(kv, "stall_ms_per_token")) {
    text += fmt::format("stall    {:.2f} ms per token", NumberOf(kv, "stall_ms_per_token"));
    if (HasNumber(kv, "io_hidden")) {
      text += fmt::format(", {:.1f} % of reading hidden", NumberOf(kv, "io_hidden") * 100.0);
    }
    text += "\n";
  }
  for (const Json& note : kv.value("io_notes", Json::array()))
    text += fmt::format("note     {}\n", TextOf(note));
  return text;
}

std::string KvLayersText(const Json& layers) {
  if (layers.empty()) return "";
  std::string text = fmt::format("{:>12} {:>10}  layer\n", "ms", "loads");
  for (size_t i = 0; i < layers.size(); ++i) {
    text +=
        fmt::format("{:>12.3f} {:>10.0f}  {}\n", NumberOf(layers[i], "ms"), NumberOf(layers[i], "loads"), i);
  }
  return text;
}

}  // namespace

std::string SummaryText(const Json& stats) {
  return fmt::format("speed    {}\nmemory   {}\n", SpeedText(stats), MemorySummary(stats));
}

std::string TurnText(const Json& stats) {
  return fmt::format("last     {}\n", SpeedText(stats.value("last", Json::object())));
}

std::string EndText(kvrun_finish finish, size_t n_tokens, uint32_t n_ctx) {
  const auto line = [](const std::string& text) { return fmt::format("end      {}\n", text); };
  switch (finish) {
    case KVRUN_FINISH_END: return line("the model ended its text");
    case KVRUN_FINISH_STOP: return line("a text of --stop was reached");
    case KVRUN_FINISH_LENGTH:
      return line(fmt::format("the limit of {} is reached (-n); -n -1 goes on until the model ends",
                              Counted(n_tokens, "token")));
    case KVRUN_FINISH_CONTEXT_FULL:
      return line(fmt::format("the context of {} is full; --ctx N makes it larger", Counted(n_ctx, "token")));
    case KVRUN_FINISH_CANCELLED: return line("interrupted");
    case KVRUN_FINISH_REPEATS: return line("the answer repeated itself; --ignore-end goes on all the same");
  }
  return line("unknown");
}

std::string StatisticsText(const Json& stats, const Json& engine_info) {
  std::string text = fmt::format("device   {}\n", TextOf(engine_info.value("device", Json("unknown"))));
  text += fmt::format("in use   {}\n", MemoryText(stats.value("memory", Json::object())));
  if (const auto kv = stats.find("kv"); kv != stats.end()) text += KvSizesText(*kv) + KvFlashText(*kv);
  return text;
}

std::string ProfileText(const Json& stats) {
  const Json kv = stats.value("kv", Json::object());
  std::string text = KvLayersText(kv.value("layers", Json::array()));
  const Json operations = stats.value("operations", Json::array());
  return operations.empty() ? text : text + OperationsText(operations);
}

void AddStatistics(const Json& stats, const Json& engine_info, Json* object) {
  for (const char* key : {"prefill_tokens", "cached_tokens", "prefill_tps", "decode_tps", "ttft_ms"})
    (*object)[key] = stats.value(key, Json());
  (*object)["device"] = engine_info.value("device", Json());
  (*object)["memory"] = stats.value("memory", Json::object());
  for (const char* key : {"kv", "operations"}) {
    if (const auto found = stats.find(key); found != stats.end()) (*object)[key] = *found;
  }
}

std::string Outline(const Json& json, int indent) {
  std::string text;
  for (const auto& [key, value] : json.items()) {
    const std::string name = json.is_array() ? "-" : key;
    const bool nested = value.is_structured() && !value.empty();
    text += fmt::format("{:{}}{:<{}}{}\n", "", indent, name, nested || json.is_array() ? 2 : 26 - indent,
                        nested ? "" : Printable(TextOf(value)));
    if (nested) text += Outline(value, indent + 2);
  }
  return text;
}

}  // namespace kvrun::cli
