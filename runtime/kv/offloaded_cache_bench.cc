// What benchmarks ask of OffloadedCache beside decoding.
#include <chrono>
#include <optional>
#include <utility>

#include "platform/base/check.h"
#include "runtime/kv/offloaded_cache.h"

namespace kvrun {

void OffloadedCache::ReplaySelection(double repeated_share) {
  replayed_.clear();
  if (!plan_.method.selects()) return;
  const size_t n = layers_.size() * plan_.n_streams;
  replayed_.reserve(n);
  for (size_t i = 0; i < n; ++i) replayed_.emplace_back(repeated_share, plan_.n_pinned, plan_.n_chosen, i);
}

void OffloadedCache::BeginReadLog() { read_log_.emplace(); }

Result<RepeatedReads> OffloadedCache::RepeatReads() {
  const ReadLog log = std::exchange(read_log_, std::nullopt).value_or(ReadLog());
  if (log.reads.empty()) return RepeatedReads();
  KVRUN_CHECK(in_decode_);  // the slots that were read into are there
  const GroupStoreStats before = flash_->stats();
  const auto begin = std::chrono::steady_clock::now();
  RepeatedReads repeated;
  for (const LoggedRead& read : log.reads) {
    if (read.count == 0) continue;
    KVRUN_RETURN_IF_ERROR(store_->Fetch(read.layer, std::span(log.fetches).subspan(read.begin, read.count)));
    ++repeated.fetches;
  }
  repeated.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  repeated.reads = flash_->stats().reads - before.reads;
  repeated.read_bytes = flash_->stats().read_bytes - before.read_bytes;
  return repeated;
}

}  // namespace kvrun
