// The keys of one model's hyper-parameters; every message names the file and the key. Internal to
// model_config.cc and layer_kinds.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"

namespace kvrun {

class ModelKeys {
 public:
  // Both must outlive it.
  ModelKeys(const GgufFile& file, std::string_view architecture) : file_(file), architecture_(architecture) {}

  const GgufFile& file() const { return file_; }
  std::string Key(std::string_view suffix) const;
  bool Has(std::string_view suffix) const { return file_.Has(Key(suffix)); }

  Result<uint32_t> Bounded(std::string_view suffix, uint32_t value, uint32_t min, uint32_t max) const;
  // 1 to max.
  Result<uint32_t> Size(std::string_view suffix, uint32_t max) const;
  Result<uint32_t> SizeOr(std::string_view suffix, uint32_t fallback, uint32_t max) const;
  // Finite, 0 or more.
  Result<float> NonNegativeOr(std::string_view suffix, float fallback) const;
  // Some files write one number per layer: of the first n_layers, those that are not 0 have to be equal where
  // `zero_is_other`, else all.
  Result<uint32_t> SameInEveryLayer(std::string_view suffix, uint32_t max, uint32_t n_blocks,
                                    uint32_t n_layers, bool zero_is_other) const;

 private:
  const GgufFile& file_;
  std::string_view architecture_;
};

}  // namespace kvrun
