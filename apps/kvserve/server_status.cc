#include "apps/kvserve/server_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace kvrun::serve {
namespace {

double NumberIn(const Json& object, const char* key) {
  const Json value = object.value(key, Json());
  return value.is_number() ? value.get<double>() : 0.0;
}

// Of the sessions that have such a number; null: none has.
Json MeanOf(const Json& sessions, const char* key) {
  double sum = 0.0;
  int n = 0;
  for (const Json& session : sessions) {
    if (!session.value(key, Json()).is_number()) continue;
    sum += NumberIn(session, key);
    ++n;
  }
  return n == 0 ? Json() : Json(sum / n);
}

Json SumOf(const Json& sessions, const char* key) {
  Json sum;
  for (const Json& session : sessions) {
    if (!session.value(key, Json()).is_number()) continue;
    sum = (sum.is_null() ? 0.0 : sum.get<double>()) + NumberIn(session, key);
  }
  return sum;
}

// Bytes of each part that is there now, over all sessions that are open. What only reading a prompt takes is
// let go before the answer, and what only that takes is made then.
std::map<std::string, double> PartsOf(const Json& sessions) {
  std::map<std::string, double> parts;
  for (const Json& session : sessions) {
    const Json chosen = session.value("chosen_groups", Json());  // for answers; null: none are chosen
    const char* phase = chosen.is_number() && chosen.get<double>() == 0.0 ? "prefill" : "decode";
    for (const Json& part : session.value("parts", Json::array())) {
      if (part.value(phase, Json(true)) == true)
        parts[cli::TextOf(part.value("name", Json("")))] += NumberIn(part, "bytes");
    }
  }
  return parts;
}

Json DecodeRate(const Json& report) {
  const double ms = NumberIn(report, "decode_ms");
  return ms > 0.0 ? Json(1e3 * NumberIn(report, "decode_tokens") / ms) : Json();
}

}  // namespace

Json StatusOf(const std::string& model_name, const Json& report) {
  const Json kv = report.value("kv", Json::array());
  Json parts = Json::array();
  for (const auto& [name, bytes] : PartsOf(kv)) parts.push_back({{"name", name}, {"bytes", bytes}});
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Json& a, const Json& b) { return NumberIn(a, "bytes") > NumberIn(b, "bytes"); });
  Json requests = report.value("requests", Json::array());
  Json sessions = report.value("stored", Json::array());
  std::stable_sort(sessions.begin(), sessions.end(), [](const Json& a, const Json& b) {
    return NumberIn(a, "tokens") > NumberIn(b, "tokens");
  });
  for (Json& request : requests) request["id"] = fmt::format("{:.0f}", NumberIn(request, "id"));
  return {{"model", model_name},
          {"budget_bytes", SumOf(kv, "budget_bytes")},
          {"parts", parts},
          {"process_bytes", report.value("memory", Json::object()).value("process", Json())},
          {"hit_rate", MeanOf(kv, "hit_rate")},
          {"stall_ms_per_token", MeanOf(kv, "stall_ms_per_token")},
          {"read_mbps", MeanOf(kv, "read_mbps")},
          {"read_bytes", report.value("read_bytes", Json())},
          {"written_bytes", report.value("written_bytes", Json())},
          {"decode_tps", DecodeRate(report)},
          {"requests", requests},
          {"n_queued", report.value("queued", Json())},
          {"sessions", sessions}};
}

namespace {

class Metrics {
 public:
  void Begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += fmt::format("# HELP kvrun_{} {}\n# TYPE kvrun_{} {}\n", name, help, name, type);
  }
  void Add(double value, const std::string& labels = "") {
    text_ += fmt::format("kvrun_{}{} {}\n", name_, labels.empty() ? "" : "{" + labels + "}", value);
  }
  void One(std::string_view name, std::string_view type, std::string_view help, double value) {
    Begin(name, type, help);
    Add(value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

void AddRequests(const Json& report, Metrics* metrics) {
  metrics->Begin("requests_total", "counter", "Requests that have ended.");
  const double cancelled = NumberIn(report, "cancelled");
  const double failed = NumberIn(report, "failed");
  metrics->Add(NumberIn(report, "ended") - cancelled - failed, "outcome=\"answered\"");
  metrics->Add(cancelled, "outcome=\"cancelled\"");
  metrics->Add(failed, "outcome=\"failed\"");
  std::map<std::string, double> states = {{"queued", 0.0}, {"reading", 0.0}, {"answering", 0.0}};
  for (const Json& request : report.value("requests", Json::array()))
    ++states[cli::TextOf(request.value("state", Json("")))];
  metrics->Begin("active_requests", "gauge", "Requests that have not ended.");
  for (const auto& [state, n] : states) metrics->Add(n, "state=\"" + state + "\"");
}

void AddStored(const Json& report, Metrics* metrics) {
  double bytes = 0.0;
  const Json stored = report.value("stored", Json::array());
  for (const Json& one : stored) bytes += NumberIn(one, "bytes");
  metrics->One("sessions", "gauge", "Sessions that are kept on flash.", static_cast<double>(stored.size()));
  metrics->One("sessions_bytes", "gauge", "What they take there.", bytes);
}

}  // namespace

std::string MetricsOf(const Json& report) {
  const Json kv = report.value("kv", Json::array());
  Metrics metrics;
  AddRequests(report, &metrics);
  const auto total = [&](std::string_view name, std::string_view help, const char* key, double scale = 1.0) {
    metrics.One(name, "counter", help, NumberIn(report, key) * scale);
  };
  total("prompt_tokens_total", "Tokens of prompts.", "prompt_tokens");
  total("cached_tokens_total", "Of these, such as were not read again.", "cached_tokens");
  total("answer_tokens_total", "Tokens of answers.", "answer_tokens");
  total("decode_tokens_total", "Tokens that decode steps have computed.", "decode_tokens");
  total("prefill_seconds_total", "Time of reading prompts.", "prefill_ms", 1e-3);
  total("decode_seconds_total", "Time of decode steps.", "decode_ms", 1e-3);
  total("flash_read_bytes_total", "Read of KV from flash.", "read_bytes");
  total("flash_written_bytes_total", "Written to flash.", "written_bytes");
  metrics.Begin("kv_bytes", "gauge", "Memory of the KV caches that are open, by part.");
  for (const auto& [name, bytes] : PartsOf(kv)) metrics.Add(bytes, "part=\"" + name + "\"");
  const auto gauge = [&](std::string_view name, std::string_view help, const Json& value) {
    if (value.is_number()) metrics.One(name, "gauge", help, value.get<double>());
  };
  gauge("kv_budget_bytes", "What they may take.", SumOf(kv, "budget_bytes"));
  gauge("kv_hit_rate", "Chosen groups that were in memory already, 0 to 1.", MeanOf(kv, "hit_rate"));
  gauge("kv_stall_ms_per_token", "Time for which the device waited for flash.",
        MeanOf(kv, "stall_ms_per_token"));
  gauge("process_bytes", "Memory of the process.",
        report.value("memory", Json::object()).value("process", Json()));
  AddStored(report, &metrics);
  return metrics.Take();
}

Json ReportOf(const Backend& backend) {
  char* json = nullptr;
  cli::Check(kvrun_scheduler_json(backend.scheduler, &json));
  return cli::TakeJson(json);
}

}  // namespace kvrun::serve
