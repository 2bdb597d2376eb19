#include "offline/fitting_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvrun::offline {

Result<OperationProfile> MeasureWhatFits(const std::vector<NamedPoint>& points) {
  OperationProfile profile;
  Status first;
  for (const NamedPoint& point : points) {
    Result<std::vector<OperationRow>> rows = point.measure();
    if (rows.ok()) {
      std::move(rows->begin(), rows->end(), std::back_inserter(profile.rows));
      continue;
    }
    if (rows.status().code() == StatusCode::kCancelled) return rows.status();
    const Status status = rows.status().WithContext("measuring " + point.name);
    if (status.code() != StatusCode::kOutOfMemory) return status;
    if (first.ok()) first = status;
    profile.skipped.push_back(fmt::format("{}: {}", point.name, rows.status().message()));
  }
  if (profile.rows.empty() && !first.ok()) return first;
  return profile;
}

}  // namespace kvrun::offline
