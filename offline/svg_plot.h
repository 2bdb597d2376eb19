// Plots as SVG text: a few series over two axes, for people. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvrun::offline {

enum class Scale : uint8_t { kLinear, kLog2, kLog10 };

struct PlotAxis {
  std::string label;  // with the unit: "block, KiB"
  Scale scale = Scale::kLinear;
};

struct PlotSeries {
  std::string name;  // in the legend
  std::vector<std::pair<double, double>> points;
  bool is_line = true;  // else dots alone
};

struct Plot {
  std::string title;
  PlotAxis x;
  PlotAxis y;
  std::vector<PlotSeries> series;
};

// A whole SVG file, self-contained (no scripts, no fonts to fetch). Points that a logarithmic axis cannot
// show, and values that are not finite, are left out; a plot without points says so.
std::string SvgText(const Plot& plot);

}  // namespace kvrun::offline
