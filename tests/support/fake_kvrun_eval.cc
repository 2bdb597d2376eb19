// The toy library's evaluations: what they measure says what they were asked for.
#include <string>
#include <vector>

#include "tests/support/fake_kvrun.h"

using kvrun::fake::Fail;
using kvrun::fake::HandOut;

void kvrun_eval_options_init(kvrun_eval_options* options) {
  *options = {};
  options->struct_size = sizeof(*options);
}

// As if full's tokens came one a second.
kvrun_status kvrun_session_eval_json(kvrun_session*, uint32_t, const kvrun_eval_options* options,
                                     char** json) {
  const nlohmann::json result = {{"ppl", 11.0},
                                 {"ppl_full", 10.0},
                                 {"kl_mean", 0.01 * static_cast<double>(options->n_steps)},
                                 {"kl_error", 0.002},
                                 {"top1_agreement", 0.9},
                                 {"recall", nullptr},
                                 {"recall_oracle", nullptr},
                                 {"hit_rate", 0.5},
                                 {"decode_tps", 2.0},
                                 {"decode_tps_full", 1.0}};
  return HandOut(result.dump(), json);
}

// A configuration of a budget of 1 fails, and one of an adapter "nope".
kvrun_status kvrun_eval_json(kvrun_engine*, const kvrun_eval_options* options, const int32_t*, size_t count,
                             char** json) {
  nlohmann::json results = nlohmann::json::array();
  for (size_t i = 0; i < options->n_configs; ++i) {
    nlohmann::json result = {{"config", options->configs[i]}};
    if (result["config"] == "--kv-budget 1") {
      result["error"] = "a budget of 1 B does not suffice";
    } else if (result["config"].get<std::string>().find("--kv-adapter nope") != std::string::npos) {
      result["error"] = "cannot open nope";
    } else {
      result.update({{"ppl", 11.0},
                     {"ppl_full", 10.0},
                     {"kl_mean", 0.01 * static_cast<double>(options->n_steps)},
                     {"kl_error", 0.002},
                     {"top1_agreement", 0.9},
                     {"recall", 0.8},
                     {"recall_oracle", 0.95},
                     {"hit_rate", nullptr},
                     {"decode_tps", static_cast<double>(count)},
                     {"decode_tps_full", 1.0}});
    }
    results.push_back(result);
    if (options->result != nullptr) options->result(options->result_user, results.back().dump().c_str());
  }
  return HandOut(results.dump(), json);
}

void kvrun_needle_options_init(kvrun_needle_options* options) {
  *options = {};
  options->struct_size = sizeof(*options);
}

// The share that a configuration answers is its seed in percent, and the error says how many copies there
// are. A configuration of a budget of 1 fails, and a context of more than twice the text.
kvrun_status kvrun_needles_json(kvrun_engine*, const kvrun_needle_options* options, const int32_t*,
                                size_t count, char** json) {
  if (options->n_ctx > 2 * count) return Fail(KVRUN_INVALID_ARGUMENT, "a text of 4 tokens is too short");
  nlohmann::json results = nlohmann::json::array();
  for (size_t i = 0; i < options->n_configs; ++i) {
    nlohmann::json result = {{"config", options->configs[i]}};
    if (result["config"] == "--kv-budget 1") {
      result["error"] = "a budget of 1 B does not suffice";
    } else {
      const std::vector<bool> right(options->n_needles);
      result.update({{"answered", 0.01 * static_cast<double>(options->seed)},
                     {"answered_error", 0.1 * options->n_copies},
                     {"answered_full", 0.95},
                     {"answered_full_error", 0.05},
                     {"right", right},
                     {"right_full", right}});
    }
    results.push_back(result);
    if (options->result != nullptr) options->result(options->result_user, results.back().dump().c_str());
  }
  return HandOut(results.dump(), json);
}
