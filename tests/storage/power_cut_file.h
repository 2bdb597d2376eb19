// A file in memory whose process can be killed while requests are in flight, and whose machine can lose its
// power: then of what was not synced any blocks may be gone, and any others there.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/random.h"
#include "platform/io/block_file.h"

namespace kvrun::testing {

// What stays when the process ends.
class PowerCutDisk {
 public:
  static constexpr size_t kBlockBytes = 4096;
  static constexpr auto kRubbish = std::byte{0xdd};

  explicit PowerCutDisk(uint64_t seed) : random_(seed) {}

  Random& random() { return random_; }
  const std::vector<std::byte>& bytes() const { return cached_; }
  uint64_t n_discarded_blocks() const { return n_discarded_blocks_; }

  void WriteBlock(size_t offset, std::span<const std::byte> block) {
    changes_.push_back({offset, {block.begin(), block.end()}});
    Apply(cached_, changes_.back());
  }
  // What is there afterwards is anything.
  void Discard(size_t offset, size_t n_bytes) {
    const std::vector<std::byte> rubbish(kBlockBytes, kRubbish);
    const size_t end = std::min(offset + n_bytes, cached_.size());
    for (; offset < end; offset += kBlockBytes) {
      WriteBlock(offset, rubbish);
      ++n_discarded_blocks_;
    }
  }
  void Sync() {
    for (const Change& change : changes_) Apply(durable_, change);
    changes_.clear();
  }
  void CutPower() {
    for (size_t i = changes_.size(); i > 1; --i) {
      std::swap(changes_[i - 1], changes_[random_.Below(static_cast<uint32_t>(i))]);
    }
    const uint32_t kept_of_8 = random_.Below(9);
    for (const Change& change : changes_) {
      if (random_.Below(8) < kept_of_8) Apply(durable_, change);
    }
    changes_.clear();
    cached_ = durable_;
  }

 private:
  struct Change {
    size_t offset;
    std::vector<std::byte> bytes;
  };
  static void Apply(std::vector<std::byte>& bytes, const Change& change) {
    bytes.resize(std::max(bytes.size(), change.offset + change.bytes.size()));
    std::copy(change.bytes.begin(), change.bytes.end(),
              bytes.begin() + static_cast<ptrdiff_t>(change.offset));
  }

  Random random_;
  std::vector<std::byte> cached_;
  std::vector<std::byte> durable_;
  std::vector<Change> changes_;  // from one to the other
  uint64_t n_discarded_blocks_ = 0;
};

// Carries out requests in any order, and none before it has to.
class PowerCutFile final : public BlockFile {
 public:
  // `disk` must outlive it.
  PowerCutFile(PowerCutDisk& disk, uint32_t queue_depth) : disk_(disk) {
    mode_.alignment_bytes = 512;
    mode_.queue_depth = queue_depth;
  }
  // Of requests in flight any blocks are written.
  ~PowerCutFile() override {
    for (const IoRequest& request : requests_) {
      if (request.kind == IoKind::kWrite) Write(request, disk_.random().Below(9));
    }
  }

  const IoMode& mode() const override { return mode_; }
  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    const size_t n = std::min(requests.size(), mode_.queue_depth - requests_.size());
    requests_.insert(requests_.end(), requests.begin(), requests.begin() + static_cast<ptrdiff_t>(n));
    most_in_flight_ = std::max(most_in_flight_, requests_.size());
    return n;
  }
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override {
    const size_t n = std::min({at_least, completions.size(), requests_.size()});
    for (size_t i = 0; i < n; ++i) {
      std::swap(requests_.back(), requests_[disk_.random().Below(static_cast<uint32_t>(requests_.size()))]);
      const IoRequest request = requests_.back();
      requests_.pop_back();
      completions[i] = {request.tag, Do(request)};
    }
    return n;
  }
  Status Reserve(uint64_t) override { return Status::Ok(); }
  void RegisterMemory(std::span<const iovec>) override {}
  Status Sync() override {
    disk_.Sync();
    return Status::Ok();
  }
  void Discard(uint64_t offset_bytes, uint64_t size_bytes) override {
    disk_.Discard(offset_bytes, size_bytes);
  }
  void DropCache() override {}
  IoCounters counters() const override { return counters_; }
  size_t most_in_flight() const { return most_in_flight_; }

 private:
  int Do(const IoRequest& request) {
    uint64_t n_bytes = 0;
    for (const iovec& segment : request.segments) n_bytes += segment.iov_len;
    const bool reads = request.kind == IoKind::kRead;
    (reads ? counters_.reads : counters_.writes) += 1;
    (reads ? counters_.read_bytes : counters_.written_bytes) += n_bytes;
    if (!reads) {
      Write(request, 8);
      return 0;
    }
    if (request.offset + n_bytes > disk_.bytes().size()) return ENODATA;
    const std::byte* from = disk_.bytes().data() + request.offset;
    for (const iovec& segment : request.segments) {
      std::memcpy(segment.iov_base, from, segment.iov_len);
      from += segment.iov_len;
    }
    return 0;
  }
  void Write(const IoRequest& request, uint32_t kept_of_8) {
    size_t offset = request.offset;
    for (const iovec& segment : request.segments) {
      const std::span bytes(static_cast<const std::byte*>(segment.iov_base), segment.iov_len);
      for (size_t at = 0; at < bytes.size(); at += PowerCutDisk::kBlockBytes) {
        if (disk_.random().Below(8) >= kept_of_8) continue;
        disk_.WriteBlock(offset + at, bytes.subspan(at, PowerCutDisk::kBlockBytes));
      }
      offset += bytes.size();
    }
  }

  PowerCutDisk& disk_;
  IoMode mode_;
  IoCounters counters_;
  std::vector<IoRequest> requests_;
  size_t most_in_flight_ = 0;
};

}  // namespace kvrun::testing
