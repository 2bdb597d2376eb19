#include "apps/kvadapt/energy_table.h"

#include <fmt/format.h>

namespace kvrun::cli {
namespace {

// What the first `rank` columns keep of the keys' energy: on average, and in the layer where it is least.
std::string EnergyRow(const Json& layers, uint32_t rank) {
  double sum = 0;
  double least = 2;
  size_t worst = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const double energy = layers[i]["energy"].at(rank - 1).get<double>();
    sum += energy;
    if (energy >= least) continue;
    least = energy;
    worst = i;
  }
  return fmt::format("{:>6} {:>8.2f} % {:>8.2f} %  {}\n", rank,
                     100 * sum / static_cast<double>(layers.size()), 100 * least, worst);
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

}  // namespace kvrun::cli
