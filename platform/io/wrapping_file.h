// A file around another, which hands everything on: for files that do some of it otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "platform/base/status.h"
#include "platform/io/block_file.h"

namespace kvrun {

class WrappingFile : public BlockFile {
 public:
  explicit WrappingFile(std::unique_ptr<BlockFile> file) : file_(std::move(file)) {}

  const IoMode& mode() const override { return file_->mode(); }
  Result<size_t> Submit(std::span<const IoRequest> requests) override { return file_->Submit(requests); }
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override {
    return file_->Complete(completions, at_least);
  }
  Status Reserve(uint64_t size_bytes) override { return file_->Reserve(size_bytes); }
  void RegisterMemory(std::span<const iovec> regions) override { file_->RegisterMemory(regions); }
  Status Sync() override { return file_->Sync(); }
  void Discard(uint64_t offset_bytes, uint64_t size_bytes) override {
    file_->Discard(offset_bytes, size_bytes);
  }
  void DropCache() override { file_->DropCache(); }
  IoCounters counters() const override { return file_->counters(); }

 protected:
  std::unique_ptr<BlockFile> file_;
};

}  // namespace kvrun
