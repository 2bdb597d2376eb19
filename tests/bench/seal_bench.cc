// How fast one thread seals and opens records. Prints GB/s of each cipher and size, in the thread's own time.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <span>
#include <string>
#include <vector>

#include "platform/io/seal.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

constexpr double kSeconds = 0.3;
constexpr int kRuns = 3;
constexpr size_t kMemoryBytes = 8 << 20;  // records of a step do not stay in the first cache

struct Rates {
  double sealed = 0.0;  // GB/s
  double opened = 0.0;
};

// Of a machine with much else to do, what it spends here.
double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <typename Work>
double Rate(size_t record_bytes, Work work) {
  const double begin_s = ThreadSeconds();
  uint64_t n_bytes = 0;
  double seconds = 0.0;
  while (seconds < kSeconds) {
    for (size_t at = 0; at + record_bytes <= kMemoryBytes; at += record_bytes) {
      work(at);
      n_bytes += record_bytes;
    }
    seconds = ThreadSeconds() - begin_s;
  }
  return static_cast<double>(n_bytes) / seconds / 1e9;
}

Rates Measure(Cipher cipher, size_t record_bytes) {
  Sealer sealer = OrDie(Sealer::Create(cipher, OrDie(SecretKey::Random())));
  std::vector<std::byte> plain(kMemoryBytes), sealed(kMemoryBytes);
  std::vector<std::array<std::byte, kTagBytes>> tags(kMemoryBytes / record_bytes);
  const std::array<std::byte, 32> associated{};
  const auto seal = [&](size_t at) {
    RunOrDie(sealer.Seal(MakeNonce(0, at), associated, std::span(plain).subspan(at, record_bytes),
                         std::span(sealed).subspan(at, record_bytes), tags[at / record_bytes]));
  };
  const auto open = [&](size_t at) {
    RunOrDie(sealer.Open(MakeNonce(0, at), associated, std::span(sealed).subspan(at, record_bytes),
                         std::span(plain).subspan(at, record_bytes), tags[at / record_bytes]));
  };
  Rates best;
  for (int run = 0; run < kRuns; ++run) {  // what a machine with more to do takes from one
    best.sealed = std::max(best.sealed, Rate(record_bytes, seal));
    best.opened = std::max(best.opened, Rate(record_bytes, open));
  }
  return best;
}

int Run() {
  if (const Status status = CheckEncryption(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("preferred here: %s\n", std::string(CipherName(PreferredCipher())).c_str());
  std::printf("%-18s %9s %12s %12s %16s\n", "cipher", "bytes", "sealed GB/s", "opened GB/s",
              "opened us/record");
  for (const Cipher cipher : {Cipher::kAes256Gcm, Cipher::kChaCha20Poly1305}) {
    for (const size_t record_bytes : {size_t{1536}, size_t{3072}, size_t{12288}, size_t{49152}}) {
      const Rates rates = Measure(cipher, record_bytes);
      std::printf("%-18s %9zu %12.2f %12.2f %16.2f\n", std::string(CipherName(cipher)).c_str(), record_bytes,
                  rates.sealed, rates.opened, static_cast<double>(record_bytes) / rates.opened / 1e3);
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvrun::testing

int main() { return kvrun::testing::Run(); }
