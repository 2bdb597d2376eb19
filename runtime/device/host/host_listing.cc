#include "runtime/device/host/host_listing.h"

#include <unistd.h>

#include "platform/io/cpu_name.h"

namespace kvrun::host {

DeviceListing ListHostDevice(uint32_t index) {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGE_SIZE);
  DeviceListing listing;
  listing.index = index;
  listing.name = CpuName();
  listing.kind = "cpu";
  listing.driver = "kvrun host";
  if (pages > 0 && page_bytes > 0) {
    listing.memory_bytes = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
  }
  listing.usable = true;
  return listing;
}

}  // namespace kvrun::host
