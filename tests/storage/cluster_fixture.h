// What the tests of ClusterStore share: files of any alignment, records whose bytes follow from where they
// belong and from a version of each, and memory to fetch them into.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/store/cluster_store.h"
#include "tests/storage/store_fixture.h"

namespace kvrun::testing {

// Asks for an alignment, and holds its user to it, whatever the file under it needs.
class StrictFile final : public WrappingFile {
 public:
  StrictFile(std::unique_ptr<BlockFile> file, uint32_t alignment_bytes) : WrappingFile(std::move(file)) {
    mode_ = file_->mode();
    mode_.alignment_bytes = alignment_bytes;
  }

  const IoMode& mode() const override { return mode_; }
  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      EXPECT_EQ(request.offset % mode_.alignment_bytes, 0U);
      for (const iovec& segment : request.segments) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(segment.iov_base) % mode_.alignment_bytes, 0U);
        EXPECT_EQ(segment.iov_len % mode_.alignment_bytes, 0U);
        EXPECT_LE(request.offset + segment.iov_len, size_bytes_);
      }
    }
    return file_->Submit(requests);
  }
  Status Reserve(uint64_t size_bytes) override {
    size_bytes_ = size_bytes;
    return file_->Reserve(size_bytes);
  }

 private:
  IoMode mode_;
  uint64_t size_bytes_ = 0;
};

// The file itself where alignment_bytes is 0, and null where the file is.
inline std::unique_ptr<BlockFile> AlignedFile(std::unique_ptr<BlockFile> file, uint32_t alignment_bytes) {
  if (file == nullptr) return nullptr;
  const uint32_t alignment = alignment_bytes > 0 ? alignment_bytes : file->mode().alignment_bytes;
  return std::make_unique<StrictFile>(std::move(file), alignment);
}

// Of record i of a cluster.
inline uint64_t ClusterRecordPlace(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t i) {
  return RecordPlace(layer, stream, cluster * 64 + i);
}

inline std::vector<std::byte> MakeClusterRecords(uint32_t record_bytes, uint32_t layer, uint32_t stream,
                                                 uint32_t cluster, const std::vector<uint64_t>& versions) {
  std::vector<std::byte> records(size_t{record_bytes} * versions.size());
  for (uint32_t i = 0; i < versions.size(); ++i) {
    FillPattern(std::span(records).subspan(size_t{i} * record_bytes, record_bytes),
                ClusterRecordPlace(layer, stream, cluster, i), versions[i]);
  }
  return records;
}

// The cluster, and what its records should be.
struct WantedCluster {
  uint32_t stream = 0;
  uint32_t cluster = 0;
  std::vector<uint64_t> versions;
};

// Memory for clusters, no two records side by side, and some of them not wanted.
class ClusterReader {
 public:
  ClusterReader(uint32_t record_bytes, std::vector<WantedCluster> wanted, uint32_t skip_every = 0)
      : record_bytes_(record_bytes), wanted_(std::move(wanted)) {
    size_t n = 0;
    for (const WantedCluster& cluster : wanted_) n += cluster.versions.size();
    memory_.assign(n * (size_t{record_bytes} + kGapBytes), kUntouched);
    std::byte* next = memory_.data() + memory_.size();
    for (const WantedCluster& cluster : wanted_) {
      std::vector<std::byte*>& records = records_.emplace_back();
      for (size_t i = 0; i < cluster.versions.size(); ++i) {
        next -= record_bytes + kGapBytes;
        records.push_back(skip_every > 0 && i % skip_every == 0 ? nullptr : next);
      }
    }
    for (size_t i = 0; i < wanted_.size(); ++i) {
      fetches_.push_back(
          {wanted_[i].stream, wanted_[i].cluster, static_cast<uint32_t>(records_[i].size()), records_[i]});
    }
  }

  const std::vector<ClusterFetch>& fetches() const { return fetches_; }

  // What was not handed out right, as a sentence; empty: nothing.
  std::string Wrong(uint32_t layer) const {
    for (const WantedCluster& wanted : wanted_) {
      const std::vector<std::byte*>& records = records_[static_cast<size_t>(&wanted - wanted_.data())];
      for (uint32_t i = 0; i < records.size(); ++i) {
        if (records[i] == nullptr) continue;
        const std::byte* const gap = records[i] + record_bytes_;
        const bool good =
            HoldsPattern({records[i], record_bytes_},
                         ClusterRecordPlace(layer, wanted.stream, wanted.cluster, i), wanted.versions[i]) &&
            std::all_of(gap, gap + kGapBytes, [](std::byte b) { return b == kUntouched; });
        if (!good) {
          return "WRONG BYTES: layer " + std::to_string(layer) + ", stream " + std::to_string(wanted.stream) +
                 ", cluster " + std::to_string(wanted.cluster) + ", record " + std::to_string(i);
        }
      }
    }
    return "";
  }

 private:
  static constexpr size_t kGapBytes = 3;
  static constexpr std::byte kUntouched{0xcd};

  uint32_t record_bytes_;
  std::vector<WantedCluster> wanted_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<std::byte*>> records_;
  std::vector<ClusterFetch> fetches_;
};

}  // namespace kvrun::testing
