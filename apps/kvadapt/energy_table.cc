#include "apps/kvadapt/energy_table.h"

#include <fmt/format.h>

namespace kvrun::cli {
namespace {

// What the first `rank` columns keep of the keys' energy: on average, and in the layer where it is least.
struct KeptEnergy {
  double mean = 0;
  double least = 2;
  size_t worst_layer = 0;
};

KeptEnergy EnergyAt(const Json& layers, uint32_t rank) {
  KeptEnergy kept;
  for (size_t i = 0; i < layers.size(); ++i) {
    const double energy = layers[i]["energy"].at(rank - 1).get<double>();
    kept.mean += energy / static_cast<double>(layers.size());
    if (energy >= kept.least) continue;
    kept.least = energy;
    kept.worst_layer = i;
  }
  return kept;
}

std::string EnergyRow(const Json& layers, uint32_t rank) {
  const KeptEnergy kept = EnergyAt(layers, rank);
  return fmt::format("{:>6} {:>8.2f} % {:>8.2f} %  {}\n", rank, 100 * kept.mean, 100 * kept.least,
                     kept.worst_layer);
}

}  // namespace

std::string EnergyTable(const Json& result) {
  if (result["layers"].at(0)["energy"].empty()) return "no energies are given\n";
  const auto rank = result["rank"].get<uint32_t>();
  std::string text = "  rank  energy kept     lowest  in layer\n";
  for (const uint32_t shown : {4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}) {
    if (shown < rank) text += EnergyRow(result["layers"], shown);
  }
  return text + EnergyRow(result["layers"], rank);
}

offline::Plot EnergyPlot(const Json& result) {
  offline::PlotSeries mean{.name = "mean of all layers", .points = {}};
  offline::PlotSeries worst{.name = "worst layer", .points = {}};
  for (uint32_t rank = 1; rank <= result["rank"].get<uint32_t>(); ++rank) {
    const KeptEnergy kept = EnergyAt(result["layers"], rank);
    mean.points.emplace_back(rank, 100 * kept.mean);
    worst.points.emplace_back(rank, 100 * kept.least);
  }
  return {.title = fmt::format("Energy of keys kept by rank, {}", TextOf(result["kind"])),
          .x = {.label = "rank, columns"},
          .y = {.label = "energy kept, %"},
          .series = {mean, worst}};
}

}  // namespace kvrun::cli
