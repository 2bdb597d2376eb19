#include "apps/kvadapt/reuse_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "apps/common/failure.h"

namespace kvrun::cli {
namespace {

constexpr double kCapacities[] = {1, 1.25, 1.5, 2, 3, 4};  // times the groups that are selected
constexpr double kPaperEntries = 400;
constexpr size_t kLayersInLine = 10;

bool IsShown(const Json& row) { return row["policy"] == "lru"; }

// The number of selected entries that is shown; 0: there is none.
uint32_t ShownSelect(const Json& rates) {
  uint32_t best = 0;
  for (const Json& row : rates) {
    const auto select = row["select"].get<uint32_t>();
    if (IsShown(row) && (best == 0 || std::abs(select - kPaperEntries) < std::abs(best - kPaperEntries)))
      best = select;
  }
  return best;
}

// Capacities are whole groups, rounded as they were when measured.
std::string Cell(const Json& rates, uint32_t group, uint32_t select, double capacity) {
  const long n_groups = std::lround(capacity * (select / group));
  for (const Json& row : rates) {
    if (IsShown(row) && row["group"] == group && row["select"] == select && row["capacity"] == n_groups) {
      return fmt::format("{:6.1f} %", 100 * row["rate"].get<double>());
    }
  }
  return fmt::format("{:>8}", "-");
}

// Shares of the slots; a line for every ten layers.
std::string LayerTable(const Json& reuse) {
  const Json layers = reuse.value("layers", Json::array());
  if (layers.empty()) return "";
  std::string text = "shares of the slots by layer, of the mean (where its cut costs more, a layer has more)";
  for (size_t i = 0; i < layers.size(); ++i) {
    if (i % kLayersInLine == 0) text += fmt::format("\n{:>7}", i);
    text += fmt::format(" {:5.2f}", layers[i]["share"].get<double>());
  }
  return text + "\n";
}

}  // namespace

Json MeasureReuseRates(const LoadedEngine& loaded, const std::string& adapter,
                       const std::vector<std::vector<int32_t>>& texts, uint32_t n_ctx,
                       const std::string& folder, bool skips_layers, uint32_t max_ms, Progress* progress) {
  const auto longest = std::max_element(texts.begin(), texts.end(),
                                        [](const auto& a, const auto& b) { return a.size() < b.size(); });
  kvrun_reuse_options given;
  kvrun_reuse_options_init(&given);
  given.n_ctx = n_ctx;
  if (!folder.empty()) given.folder = folder.c_str();
  given.allow_tmpfs = 1;  // rates do not depend on where it lies
  given.skip_layers = skips_layers ? 1 : 0;
  given.max_ms = max_ms;
  given.progress = Progress::Callback;
  given.progress_user = progress;
  char* json = nullptr;
  progress->SetLabel("reuse rates");
  const kvrun_status status = kvrun_measure_reuse(loaded.engine.get(), &given, adapter.c_str(),
                                                  longest->data(), longest->size(), &json);
  progress->Clear();
  progress->SetLabel("");
  if (status == KVRUN_CANCELLED) throw Interruption();
  if (status != KVRUN_OK) {
    throw Failure(status, fmt::format("reuse rates could not be measured: {}", kvrun_last_error()));
  }
  return TakeJson(json);
}

std::string ReuseTable(const Json& adapter) {
  if (!adapter.contains("reuse")) return "";
  const Json& reuse = adapter["reuse"];
  const Json rates = reuse.value("rates", Json::array());
  const uint32_t select = ShownSelect(rates);
  if (select == 0) return TextOf(reuse.value("note", Json("no reuse rates"))) + "\n";
  std::string text = fmt::format(
      "reuse rates with lru, {} entries selected (M groups), by groups kept (C)\n"
      "  group",
      select);
  for (const double capacity : kCapacities)
    text += fmt::format("{:>9}", capacity == 1 ? "C = M" : fmt::format("{} M", capacity));
  text += "\n";
  std::set<uint32_t> groups;
  for (const Json& row : rates) {
    if (row["select"] == select) groups.insert(row["group"].get<uint32_t>());
  }
  for (const uint32_t group : groups) {
    text += fmt::format("{:>7}", group);
    for (const double capacity : kCapacities) text += " " + Cell(rates, group, select, capacity);
    text += "\n";
  }
  return text + LayerTable(reuse);
}

}  // namespace kvrun::cli
