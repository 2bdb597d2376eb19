// Not a test, but what shows that the sanitizers work: makes one of the defects that they look for.
//   sanitizer_defects overflow|use-after-free|leak|signed-overflow|misaligned-load|data-race
// scripts/test-sanitizers runs each, and fails where none is reported.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "runtime/device/host/thread_pool.h"

namespace {

// What the compiler cannot know, so that nothing is left out or warned about.
volatile size_t one = 1;

int Overflow() {
  const std::vector<int> values(8);
  return values.data()[7 + one];
}

int UseAfterFree() {
  const int* kept = nullptr;
  {
    const std::vector<int> values(8);
    kept = values.data() + one;
  }
  return *kept;
}

int Leak() {
  for (size_t i = 0; i < 100; ++i) {  // some may still be found in a register
    auto* const values = static_cast<volatile int*>(std::malloc(64 * one));
    values[i % 8] = 1;
  }
  return 0;
}

int SignedOverflow() { return std::numeric_limits<int>::max() + static_cast<int>(one); }

int MisalignedLoad() {
  alignas(8) const char bytes[16] = {};
  return *reinterpret_cast<const int*>(bytes + one);
}

// Workers of the CPU device count without a lock. On a busy machine the caller may do every piece before the
// worker has woken: rounds count in which both took some.
int DataRace() {
  kvrun::host::ThreadPool pool(2);
  int count = 0;
  for (int both = 0, rounds = 0; both < 1000 && rounds < 1000000; ++rounds) {
    std::atomic<bool> has_counted[2] = {};
    pool.ParallelFor(64, 1, [&](size_t, size_t, uint32_t worker) {
      ++count;
      has_counted[worker].store(true, std::memory_order_relaxed);
    });
    both += has_counted[0] && has_counted[1] ? 1 : 0;
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view defect = argc == 2 ? argv[1] : "";
  int made = 0;
  if (defect == "overflow") {
    made = Overflow();
  } else if (defect == "use-after-free") {
    made = UseAfterFree();
  } else if (defect == "leak") {
    made = Leak();
  } else if (defect == "signed-overflow") {
    made = SignedOverflow();
  } else if (defect == "misaligned-load") {
    made = MisalignedLoad();
  } else if (defect == "data-race") {
    made = DataRace();
  } else {
    std::fprintf(stderr, "there is no defect \"%s\"\n", argc == 2 ? argv[1] : "");
    return 2;
  }
  std::printf("not noticed: %d\n", made);
  return 0;
}
