// How fast one thread seals and opens records. Prints GB/s of each cipher and size, in the thread's own time.
// Then how fast a file that is encrypted is read from memory, with helpers and without: GB/s, the best of
// some tries.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "platform/io/seal.h"
#include "platform/io/secret_key.h"
#include "runtime/store/sealed_file.h"
#include "runtime/store/sealed_units.h"
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

// Of what lies in memory nothing is waited for.
class MemoryFile final : public BlockFile {
 public:
  explicit MemoryFile(uint32_t queue_depth) : bytes_(kMemoryBytes), done_(queue_depth) {
    mode_.alignment_bytes = 512;
    mode_.queue_depth = queue_depth;
  }
  const IoMode& mode() const override { return mode_; }
  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      std::byte* at = bytes_.data() + request.offset;
      for (const iovec& segment : request.segments) {
        auto* const memory = static_cast<std::byte*>(segment.iov_base);
        const bool is_read = request.kind == IoKind::kRead;
        std::copy_n(is_read ? at : memory, segment.iov_len, is_read ? memory : at);
        at += segment.iov_len;
      }
      done_[n_done_++] = {request.tag, 0};
    }
    return requests.size();
  }
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t) override {
    const size_t n = std::min(completions.size(), n_done_);
    n_done_ -= n;
    std::copy_n(done_.begin() + static_cast<ptrdiff_t>(n_done_), n, completions.begin());
    return n;
  }
  Status Reserve(uint64_t) override { return Status::Ok(); }
  void RegisterMemory(std::span<const iovec>) override {}
  Status Sync() override { return Status::Ok(); }
  void DropCache() override {}
  IoCounters counters() const override { return {}; }

 private:
  IoMode mode_;
  std::vector<std::byte> bytes_;
  std::vector<IoCompletion> done_;
  size_t n_done_ = 0;
};

// Requests of a unit each, as many as are ever in flight; a thread that waits takes no time of its own.
double ReadRate(uint32_t unit_bytes, uint32_t n_helpers) {
  using Clock = std::chrono::steady_clock;
  constexpr uint32_t kDepth = 32;
  constexpr int kTries = 300;
  const SealedShape shape{.size_bytes = uint64_t{kDepth} * unit_bytes, .unit_bytes = unit_bytes};
  const auto file = OrDie(SealedFile::Create(std::make_unique<MemoryFile>(kDepth), OrDie(SecretKey::Random()),
                                             shape, 0, n_helpers));
  constexpr auto kAlignment = std::align_val_t{4096};
  const auto release = [](std::byte* memory) { operator delete[](memory, kAlignment); };
  const std::unique_ptr<std::byte, decltype(release)> memory(new (kAlignment) std::byte[shape.size_bytes](),
                                                             release);
  std::vector<iovec> segments(kDepth);
  std::vector<IoRequest> requests(kDepth);
  std::vector<IoCompletion> completions(kDepth);
  const auto transfer = [&](IoKind kind) {
    for (uint32_t i = 0; i < kDepth; ++i) {
      segments[i] = {memory.get() + size_t{i} * unit_bytes, unit_bytes};
      requests[i] = {kind, uint64_t{i} * unit_bytes, {&segments[i], 1}, i};
    }
    (void)OrDie(file->Submit(requests));
    for (size_t n = 0; n < kDepth;) n += OrDie(file->Complete(completions, 1));
  };
  transfer(IoKind::kWrite);
  double best = 0.0;
  for (int i = 0; i < kTries; ++i) {
    const Clock::time_point begin = Clock::now();
    transfer(IoKind::kRead);
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    best = std::max(best, static_cast<double>(shape.size_bytes) / elapsed.count() / 1e9);
  }
  return best;
}

void PrintReadRates() {
  std::printf("\n%-18s %9s %12s %12s %12s %12s\n", "read and opened", "bytes", "alone GB/s", "1 helper",
              "2 helpers", "3 helpers");
  for (const uint32_t unit_bytes : {1536U, 4096U, 12288U, 49152U}) {
    std::printf("%-18s %9u", "", unit_bytes);
    for (const uint32_t n_helpers : {0U, 1U, 2U, 3U}) std::printf(" %12.2f", ReadRate(unit_bytes, n_helpers));
    std::printf("\n");
  }
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
  PrintReadRates();
  return 0;
}

}  // namespace
}  // namespace kvrun::testing

int main() { return kvrun::testing::Run(); }
