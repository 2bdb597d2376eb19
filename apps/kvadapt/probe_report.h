// What `kvadapt probe` shows of a profile: tables and plots. Pure.
#pragma once

#include <string>

#include "offline/device_profile.h"
#include "offline/svg_plot.h"

namespace kvrun::cli {

// Empty where nothing of its kind was measured.
std::string StorageTable(const offline::DeviceProfile& profile);
std::string OperationTable(const offline::DeviceProfile& profile);

offline::Plot StoragePlot(const offline::DeviceProfile& profile);  // of the mode that sessions take, by depth
offline::Plot ModePlot(const offline::DeviceProfile& profile);     // of all modes, at one depth
offline::Plot OperationPlot(const offline::DeviceProfile& profile);  // by entries that are attended to

}  // namespace kvrun::cli
