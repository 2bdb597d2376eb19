// What the page and Prometheus are told of a report of the scheduler.
#include "apps/kvserve/server_status.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

namespace kvrun::serve {
namespace {

Json Part(const char* name, double bytes, bool prefill, bool decode) {
  return {{"name", name}, {"bytes", bytes}, {"prefill", prefill}, {"decode", decode}};
}

// Of a session that has chosen so many groups for its answer.
Json Kv(int chosen_groups) {
  return {
      {"budget_bytes", 100},
      {"chosen_groups", chosen_groups},
      {"hit_rate", chosen_groups > 0 ? Json(0.5) : Json()},
      {"parts",
       {Part("prefill", 60, true, false), Part("slots", 70, false, true), Part("window", 9, true, true)}}};
}

Json Report() {
  return {{"requests", {{{"id", 7}, {"state", "reading"}}}},
          {"queued", 2},
          {"ended", 10},
          {"cancelled", 3},
          {"failed", 1},
          {"kv", Json::array({Kv(0)})},
          {"decode_tokens", 50},
          {"decode_ms", 500},
          {"stored",
           {{{"name", "short"}, {"tokens", 5}, {"bytes", 20}},
            {{"name", "long"}, {"tokens", 90}, {"bytes", 30}}}}};
}

TEST(ServerStatus, CountsThePartsThatAreThereNow) {
  Json report = Report();
  const Json reading = StatusOf("m", report);
  EXPECT_EQ(reading["parts"],
            Json::array({{{"name", "prefill"}, {"bytes", 60.0}}, {{"name", "window"}, {"bytes", 9.0}}}));
  report["kv"] = Json::array({Kv(4), Kv(0)});
  const Json both = StatusOf("m", report);
  EXPECT_EQ(both["parts"], Json::array({{{"name", "slots"}, {"bytes", 70.0}},
                                        {{"name", "prefill"}, {"bytes", 60.0}},
                                        {{"name", "window"}, {"bytes", 18.0}}}));
  EXPECT_EQ(both["budget_bytes"], 200.0);
  EXPECT_EQ(both["hit_rate"], 0.5) << "of the session that has one";
}

TEST(ServerStatus, SaysWhatIsNotKnown) {
  Json report = Report();
  report["kv"] = Json::array();
  report["decode_ms"] = 0;
  const Json status = StatusOf("m", report);
  for (const char* name : {"budget_bytes", "hit_rate", "stall_ms_per_token", "read_mbps", "decode_tps"})
    EXPECT_TRUE(status[name].is_null()) << name;
  EXPECT_EQ(status["parts"], Json::array());
}

TEST(ServerStatus, ListsSessionsTheLongestFirst) {
  const Json status = StatusOf("m", Report());
  EXPECT_EQ(status["sessions"][0]["name"], "long");
  EXPECT_EQ(status["sessions"][1]["name"], "short");
  EXPECT_EQ(status["requests"][0]["id"], "7");
  EXPECT_EQ(status["decode_tps"], 100.0);
}

// Parsers of OpenMetrics take a counter's name without "_total": it must not be another's.
TEST(ServerMetrics, FamiliesHaveNamesOfTheirOwn) {
  std::istringstream lines(MetricsOf(Report()));
  std::set<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, what, name;
    words >> hash >> what >> name;
    if (what != "TYPE") continue;
    const size_t total = name.rfind("_total");
    EXPECT_TRUE(names.insert(name.substr(0, total)).second) << name;
  }
  EXPECT_GT(names.size(), 10U);
}

TEST(ServerMetrics, CountRequestsByWhatBecameOfThem) {
  const std::string text = MetricsOf(Report());
  for (const char* line :
       {"kvrun_requests_total{outcome=\"answered\"} 6", "kvrun_requests_total{outcome=\"cancelled\"} 3",
        "kvrun_requests_total{outcome=\"failed\"} 1", "kvrun_active_requests{state=\"reading\"} 1",
        "kvrun_active_requests{state=\"answering\"} 0", "kvrun_kv_bytes{part=\"prefill\"} 60",
        "kvrun_decode_seconds_total 0.5", "kvrun_sessions 2", "kvrun_sessions_bytes 50"}) {
    EXPECT_NE(text.find(std::string("\n") + line + "\n"), text.npos) << line << " in\n" << text;
  }
}

}  // namespace
}  // namespace kvrun::serve
