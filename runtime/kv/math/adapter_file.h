// An adapter's file that is asked several times, and read once: what it says stays the same, whatever becomes
// of the file meanwhile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "platform/base/status.h"
#include "runtime/kv/math/adapter.h"

namespace kvrun {

// Of an adapter: which model it is of, and how many columns a layer has.
struct AdapterFit {
  std::string fingerprint;
  uint32_t n_layers = 0;
  uint32_t key_dim = 0;
  uint32_t rank = 0;
};

class AdapterFile {
 public:
  // Nothing is read yet: the first question does.
  explicit AdapterFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // As ReadWholeAdapter; null never. All of it is held as long as this.
  Result<const Adapter*> Whole();
  // What is wrong with it for a model that needs this, as ReadAdapter says it.
  Status Check(const AdapterFit& needed);
  // As ReadAdapter. The end of this: what was read is cut down to what is needed. If nobody has asked before,
  // no more than that is read.
  Result<Adapter> Take(const AdapterFit& needed) &&;

 private:
  struct Content {
    AdapterFit fit;           // with all columns that there are
    Result<Adapter> adapter;  // what is in the layers may be damaged
  };

  static Result<Content> Read(const std::string& path);
  const Result<Content>& content();

  std::string path_;
  std::optional<Result<Content>> content_;
};

}  // namespace kvrun
