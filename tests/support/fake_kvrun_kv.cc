// The toy library's KV cache: options that begin with "bad" are refused, and so are a budget of 1
// and an adapter "gone".
#include <fmt/format.h>

#include <fstream>

#include "tests/support/fake_kvrun.h"

namespace kvrun::fake {

KvOptions ReadKvOptions(const kvrun_session_options& options) {
  KvOptions read;
  for (size_t i = 0; i < options.n_kv_options; ++i) {
    read[options.kv_options[i].name] = options.kv_options[i].value;
  }
  return read;
}

std::string MethodOf(const KvOptions& options) {
  const auto found = options.find("method");
  if (found != options.end()) return found->second;
  return options.contains("budget") ? "kvswap" : "full";
}

std::string PlanLine(const KvOptions& kv, uint32_t n_sequences, uint32_t n_ctx) {
  std::string line = fmt::format("{} sequences of {} tokens", n_sequences, n_ctx);
  for (const auto& [name, value] : kv) line += fmt::format(", {} {}", name, value);
  return line;
}

nlohmann::json KvStatistics(const KvOptions& options, const std::string& line, bool with_layers) {
  nlohmann::json kv = {{"line", line},
                       {"method", MethodOf(options)},
                       {"full_bytes", 188743680},
                       {"budget_bytes", 14155776},
                       {"prefill_bytes", 13631488},
                       {"decode_bytes", 12582912},
                       {"parts",
                        {{{"name", "slots"}, {"bytes", 8388608}, {"prefill", false}, {"decode", true}},
                         {{"name", "index"}, {"bytes", 2097152}, {"prefill", true}, {"decode", true}}}},
                       {"chosen_groups", 1000},
                       {"hit_rate", 0.75},
                       {"io_mode", "threads buffered"},
                       {"io_notes", {"io_uring cannot be used: forbidden"}},
                       {"reads", 250},
                       {"read_bytes", 8192000},
                       {"mean_read_bytes", 32768.0},
                       {"read_mbps", 512.5},
                       {"bytes_written", 94371840},
                       {"stall_ms_per_token", 3.25},
                       {"io_hidden", 0.875}};
  if (with_layers) kv["layers"] = {{{"loads", 7}, {"ms", 1.5}}, {{"loads", 8}, {"ms", 2.5}}};
  return kv;
}

}  // namespace kvrun::fake

using kvrun::fake::Fail;

kvrun_status kvrun_kv_option_check(const char* name, const char* value) {
  if (!std::string_view(value).starts_with("bad")) return KVRUN_OK;
  return Fail(KVRUN_INVALID_ARGUMENT, fmt::format("KV option {}: \"{}\" is not one of good", name, value));
}

// The library's own, which the build has asked it for: but for methods, of which the toy has some of its own.
kvrun_status kvrun_kv_options_json(char** json) {
  std::ifstream file(KVRUN_KV_OPTIONS_FILE);
  nlohmann::json rows = nlohmann::json::parse(file);
  for (nlohmann::json& row : rows) {
    if (row["name"] == "method") row["words"] = {"full", "toy"};
  }
  return kvrun::fake::HandOut(rows.dump(), json);
}

kvrun_status kvrun_kv_plan_json(const kvrun_model* model, const kvrun_session_options* options, char** json) {
  const kvrun::fake::KvOptions kv = kvrun::fake::ReadKvOptions(*options);
  const auto budget = kv.find("budget");
  if (budget != kv.end() && budget->second == "1") {
    return Fail(KVRUN_OUT_OF_MEMORY, "a budget of 1 B does not suffice; the smallest that does is 9.0 MiB");
  }
  if (kv.contains("adapter") && kv.at("adapter") == "gone") return Fail(KVRUN_NOT_FOUND, "cannot open gone");
  const uint32_t n_ctx = options->n_ctx == 0 ? kvrun_model_context_train(model) : options->n_ctx;
  const bool on_flash = kvrun::fake::MethodOf(kv) != "full";
  const std::string folder = kv.contains("dir") ? kv.at("dir") : "/fake/kv";
  nlohmann::json plan = {{"line", kvrun::fake::PlanLine(kv, options->n_sequences, n_ctx)},
                         {"full_bytes", 188743680},
                         {"prefill_bytes", on_flash ? 13631488 : 188743680},
                         {"decode_bytes", on_flash ? 12582912 : 188743680},
                         {"on_flash", on_flash},
                         {"folder", on_flash ? nlohmann::json(folder) : nlohmann::json()},
                         {"notes", nlohmann::json::array()}};
  if (budget != kv.end() && budget->second == "1/1000") {
    plan["notes"].push_back("the KV budget (--kv-budget) is raised");
  }
  if (const auto dir = kv.find("dir"); dir != kv.end() && dir->second == "/slow") {
    plan["notes"].push_back("flash is slow: groups of 8");
  }
  if (const uint32_t trained = kvrun_model_context_train(model); options->n_ctx > trained) {
    plan["notes"].push_back(fmt::format("{} tokens are beyond {}", options->n_ctx, trained));
  }
  return kvrun::fake::HandOut(plan.dump(), json);
}
