#include "offline/svg_plot.h"

namespace kvrun::offline {

std::string SvgText(const Plot& plot) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\"><title>" + plot.title + "</title></svg>\n";
}

}  // namespace kvrun::offline
