// Requests in flight have no order: a file that carries out the newest first, and none before it has to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tests/storage/storage_fixture.h"

namespace kvrun::testing {

class NewestFirstFile final : public WrappingFile {
 public:
  using WrappingFile::WrappingFile;

  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    EXPECT_LE(held_.size() + requests.size(), mode().queue_depth);
    held_.insert(held_.end(), requests.begin(), requests.end());
    most_held_ = std::max(most_held_, held_.size());
    return requests.size();
  }
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override {
    const size_t n = std::min({at_least, completions.size(), held_.size()});
    for (size_t i = 0; i < n; ++i) {
      const IoRequest request = held_.back();
      held_.pop_back();
      completions[i] = {request.tag,
                        DoOne(*file_, request.kind, request.offset, request.segments).error_number};
    }
    return n;
  }

  size_t n_held() const { return held_.size(); }
  size_t most_held() const { return most_held_; }

 private:
  std::vector<IoRequest> held_;
  size_t most_held_ = 0;
};

}  // namespace kvrun::testing
