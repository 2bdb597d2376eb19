// Measuring many points of which memory may not suffice for some. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "offline/probe.h"

namespace kvrun::offline {

struct NamedPoint {
  std::string name;
  std::function<Result<std::vector<OperationRow>>()> measure;
};

// The rows of all points, but for those that do not fit. Fails as the first of these where there is no row,
// and with what else a point fails with, which names the point.
Result<OperationProfile> MeasureWhatFits(const std::vector<NamedPoint>& points);

}  // namespace kvrun::offline
