// A file that does what disks do when they fail. For tests: what happens is planned, or drawn from a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "platform/io/block_file.h"

namespace kvrun {

enum class FaultKind : uint8_t {
  kNone,
  kIoError,      // EIO; a read leaves rubbish in memory, a write writes nothing
  kNoSpace,      // a write: ENOSPC, after half of it was written
  kShortRead,    // a read: ENODATA, with rubbish in the second half
  kBitFlip,      // one bit of what is read, or written, is another; no error
  kMisdirected,  // read from, or written to, another place of the file; no error
  kLostWrite,    // a write: nothing is written; no error (a power cut, a lying disk)
  kTornWrite,    // a write: only the first half is written; no error
  kStaleData,    // a read: what lay there before the last write; no error
};

std::string_view FaultKindName(FaultKind kind);

// Whether such a fault can happen to a request of this kind.
bool FaultFits(FaultKind kind, IoKind request);

struct Fault {
  FaultKind kind = FaultKind::kNone;
  IoKind request = IoKind::kRead;
  uint64_t index = 0;  // the index-th read, or the index-th write, counted from 0
  uint64_t count = 1;  // and so many after it; UINT64_MAX: all
};

struct FaultPlan {
  std::vector<Fault> faults;
  // Reads into this memory answer EFAULT, like a device's memory that disks cannot reach.
  std::span<const std::byte> refused_memory = {};
  uint64_t capacity_bytes = UINT64_MAX;  // writes beyond so many bytes in all answer ENOSPC, like a full disk
  double probability = 0.0;              // of a random fault, of each request that no fault above is for
  std::vector<FaultKind> random_kinds;   // empty: all that fit
  uint64_t seed = 1;                     // of random faults, places and bits
};

class FaultyBlockFile final : public BlockFile {
 public:
  FaultyBlockFile(std::unique_ptr<BlockFile> file, const FaultPlan& plan);
  ~FaultyBlockFile() override { file_.reset(); }  // it may still read the copies

  const IoMode& mode() const override { return file_->mode(); }
  Result<size_t> Submit(std::span<const IoRequest> requests) override;
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override;
  Status Reserve(uint64_t size_bytes) override;
  void RegisterMemory(std::span<const iovec> regions) override { file_->RegisterMemory(regions); }
  Status Sync() override { return file_->Sync(); }
  void Discard(uint64_t offset_bytes, uint64_t size_bytes) override {
    file_->Discard(offset_bytes, size_bytes);
  }
  void DropCache() override { file_->DropCache(); }
  IoCounters counters() const override { return counters_; }  // as given

  uint64_t n_faults() const { return n_faults_; }  // that happened

 private:
  struct Aligned {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte[], Aligned>;

  struct Request {
    bool used = false;
    IoRequest given;
    FaultKind fault = FaultKind::kNone;
    uint64_t bytes = 0;
    Memory copy;  // of what is written in place of the caller's bytes
    iovec copied{};
  };

  FaultKind Decide(const IoRequest& request, uint64_t bytes);
  // Carries out the fault as far as it comes before the file, and says what the file gets instead. Answers
  // false where it gets nothing: then the request is complete, with `error_number`.
  bool Prepare(Request& request, IoRequest& handed, int& error_number);
  // The first `bytes` of what is to be written, in memory of its own.
  void CopyForWriting(Request& request, uint64_t bytes, IoRequest& handed);
  // Carries out the rest of the fault once the file has answered.
  int Spoil(const Request& request, int error_number);
  uint64_t AnotherOffset(uint64_t offset, uint64_t bytes);
  void Remember(const IoRequest& request, uint64_t bytes);

  std::unique_ptr<BlockFile> file_;
  FaultPlan plan_;
  std::mt19937_64 random_;
  IoCounters counters_;
  uint64_t n_faults_ = 0;
  uint64_t size_bytes_ = 0;
  std::vector<Request> requests_;
  std::vector<IoCompletion> ready_;  // not from the file
  // What was written at each place last, and before; only where the plan has stale data.
  bool keeps_history_ = false;
  std::vector<std::byte> now_;
  std::vector<std::byte> before_;
};

}  // namespace kvrun
