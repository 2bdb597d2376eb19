#include "apps/kvadapt/probe_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace kvrun::cli {
namespace {

using offline::DeviceProfile;
using offline::OperationRow;
using offline::Plot;
using offline::Scale;
using offline::StorageRate;
using Mode = std::pair<std::string, bool>;  // back end, direct

constexpr size_t kMaxOperationLines = 8;
constexpr double kMegabyte = 1e6;

Mode ModeOf(const StorageRate& rate) { return {rate.backend, rate.direct}; }

std::string NameOf(const Mode& mode) { return mode.first + (mode.second ? " direct" : " buffered"); }

// In the order of the profile: the first is what sessions take.
std::vector<Mode> ModesOf(const DeviceProfile& profile) {
  std::vector<Mode> modes;
  for (const StorageRate& rate : profile.storage.rates) {
    if (std::find(modes.begin(), modes.end(), ModeOf(rate)) == modes.end()) modes.push_back(ModeOf(rate));
  }
  return modes;
}

const StorageRate* FindRate(const DeviceProfile& profile, const Mode& mode, uint32_t block, uint32_t depth) {
  const auto found =
      std::find_if(profile.storage.rates.begin(), profile.storage.rates.end(), [&](const StorageRate& rate) {
        return ModeOf(rate) == mode && rate.block_bytes == block && rate.depth == depth;
      });
  return found == profile.storage.rates.end() ? nullptr : &*found;
}

struct Axes {
  std::set<uint32_t> blocks;
  std::set<uint32_t> depths;
};

Axes AxesOf(const DeviceProfile& profile) {
  Axes axes;
  for (const StorageRate& rate : profile.storage.rates) {
    axes.blocks.insert(rate.block_bytes);
    axes.depths.insert(rate.depth);
  }
  return axes;
}

std::string BlockText(uint32_t bytes) {
  if (bytes % (1024 * 1024) == 0) return fmt::format("{} MiB", bytes / 1024 / 1024);
  return bytes % 1024 == 0 ? fmt::format("{} KiB", bytes / 1024) : fmt::format("{} B", bytes);
}

std::string RateText(const StorageRate* rate) {
  return rate == nullptr ? "-" : fmt::format("{:.1f}", rate->bytes_per_s / kMegabyte);
}

// The fastest of the modes that sessions do not take: "aio direct 123.4".
std::string BestOther(const DeviceProfile& profile, uint32_t block, uint32_t depth) {
  const std::vector<Mode> modes = ModesOf(profile);
  const StorageRate* best = nullptr;
  for (size_t i = 1; i < modes.size(); ++i) {
    const StorageRate* rate = FindRate(profile, modes[i], block, depth);
    if (rate != nullptr && (best == nullptr || rate->bytes_per_s > best->bytes_per_s)) best = rate;
  }
  return best == nullptr ? "" : fmt::format("  {} {}", RateText(best), NameOf(ModeOf(*best)));
}

bool HasBuffered(const std::vector<Mode>& modes) {
  return std::any_of(modes.begin(), modes.end(), [](const Mode& mode) { return !mode.second; });
}

// Of the point that the others vary.
std::vector<OperationRow> UsualRows(const DeviceProfile& profile) {
  std::vector<OperationRow> rows;
  for (const OperationRow& row : profile.operations) {
    if (row.shape == profile.operations.front().shape) rows.push_back(row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.us > b.us; });
  return rows;
}

std::string TypeText(uint32_t number) {
  static constexpr const char* kNames[] = {"f32", "f16", "fp8", "int8", "int4"};
  return number >= 1 && number <= std::size(kNames) ? kNames[number - 1] : "unknown";
}

std::string ShapeText(const std::map<std::string, uint32_t>& shape) {
  std::string text;
  for (const auto& [key, value] : shape) {
    const bool is_type = key.ends_with("_type");
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", is_type ? key.substr(0, key.size() - 5) : key,
                        is_type ? TypeText(value) : fmt::format("{}", value));
  }
  return text;
}

bool DiffersInEntriesAlone(std::map<std::string, uint32_t> a, std::map<std::string, uint32_t> b) {
  a.erase("entries");
  b.erase("entries");
  return a == b;
}

Plot BlockPlot(std::string title) {
  return {.title = std::move(title),
          .x = {.label = "block, bytes", .scale = Scale::kLog2},
          .y = {.label = "random reads, MB/s"},
          .series = {}};
}

void AddRates(const DeviceProfile& profile, const Mode& mode, uint32_t depth, std::string name, Plot* plot) {
  offline::PlotSeries series{.name = std::move(name), .points = {}};
  for (const StorageRate& rate : profile.storage.rates) {
    if (ModeOf(rate) == mode && rate.depth == depth) {
      series.points.emplace_back(rate.block_bytes, rate.bytes_per_s / kMegabyte);
    }
  }
  plot->series.push_back(std::move(series));
}

}  // namespace

std::string StorageTable(const DeviceProfile& profile) {
  const std::vector<Mode> modes = ModesOf(profile);
  if (modes.empty()) return "";
  const Axes axes = AxesOf(profile);
  const uint32_t least = *axes.depths.begin();
  const uint32_t most = *axes.depths.rbegin();
  std::string text = fmt::format("storage: {}, {}; sessions read by {}\n", profile.storage.folder,
                                 profile.machine.storage, NameOf(modes.front()));
  text += "random reads, MB/s   block";
  for (const uint32_t depth : axes.depths) text += fmt::format("{:>10}", fmt::format("depth {}", depth));
  text += fmt::format("  depth {}: us      p99", least);
  if (modes.size() > 1) text += fmt::format("  best other, depth {}", most);
  text += "\n";
  for (const uint32_t block : axes.blocks) {
    text += fmt::format("{:>26}", BlockText(block));
    for (const uint32_t depth : axes.depths) {
      text += fmt::format("{:>10}", RateText(FindRate(profile, modes.front(), block, depth)));
    }
    if (const StorageRate* rate = FindRate(profile, modes.front(), block, least)) {
      text += fmt::format("{:>13.0f}{:>9.0f}", rate->latency_us, rate->latency_p99_us);
    }
    text += BestOther(profile, block, most) + "\n";
  }
  if (HasBuffered(modes)) {
    text += "buffered: the page cache was emptied before; what it reads ahead or keeps is still its doing\n";
  }
  return text;
}

std::string OperationTable(const DeviceProfile& profile) {
  if (profile.operations.empty()) return "";
  const std::vector<OperationRow> rows = UsualRows(profile);
  double total_us = 0;
  size_t width = 0;
  for (const OperationRow& row : rows) {
    total_us += row.us;
    width = std::max(width, row.operation.size());
  }
  std::string text =
      fmt::format("operations: {}; {}\n", profile.machine.device, ShapeText(rows.front().shape));
  for (const OperationRow& row : rows) {
    text += fmt::format("  {:<{}}{:>10.3f} ms{:>7.1f} %\n", row.operation, width, row.us / 1e3,
                        total_us > 0 ? 100 * row.us / total_us : 0.0);
  }
  return text + fmt::format("  {:<{}}{:>10.3f} ms per step\n", "all", width, total_us / 1e3);
}

Plot StoragePlot(const DeviceProfile& profile) {
  const std::vector<Mode> modes = ModesOf(profile);
  if (modes.empty()) return BlockPlot("storage");
  Plot plot = BlockPlot(fmt::format("{}, {}", NameOf(modes.front()), profile.machine.storage));
  for (const uint32_t depth : AxesOf(profile).depths) {
    AddRates(profile, modes.front(), depth, fmt::format("depth {}", depth), &plot);
  }
  return plot;
}

Plot ModePlot(const DeviceProfile& profile) {
  const Axes axes = AxesOf(profile);
  if (axes.depths.empty()) return BlockPlot("storage");
  const uint32_t depth = *axes.depths.rbegin();
  Plot plot = BlockPlot(fmt::format("{} reads in flight, {}", depth, profile.machine.storage));
  for (const Mode& mode : ModesOf(profile)) AddRates(profile, mode, depth, NameOf(mode), &plot);
  return plot;
}

Plot OperationPlot(const DeviceProfile& profile) {
  Plot plot{.title = "operations of a decoding step, " + profile.machine.device,
            .x = {.label = "entries that a token attends to"},
            .y = {.label = "ms per step"},
            .series = {}};
  if (profile.operations.empty()) return plot;
  std::vector<OperationRow> usual = UsualRows(profile);
  if (usual.size() > kMaxOperationLines) usual.resize(kMaxOperationLines);
  for (const OperationRow& shown : usual) {
    offline::PlotSeries series{.name = shown.operation, .points = {}};
    for (const OperationRow& row : profile.operations) {
      const auto entries = row.shape.find("entries");
      if (row.operation != shown.operation || entries == row.shape.end()) continue;
      if (!DiffersInEntriesAlone(row.shape, shown.shape)) continue;
      series.points.emplace_back(entries->second, row.us / 1e3);
    }
    std::sort(series.points.begin(), series.points.end());
    plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace kvrun::cli
