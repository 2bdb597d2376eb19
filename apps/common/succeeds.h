// What the library calls may throw nothing through it.
#pragma once

namespace kvrun::cli {

// False: it has failed, such as for lack of memory.
template <typename Work>
bool Succeeds(const Work& work) noexcept {
  try {
    work();
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace kvrun::cli
