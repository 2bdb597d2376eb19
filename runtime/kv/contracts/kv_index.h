// What stays in memory so that groups can be scored without reading them: rows that a query is multiplied
// with. One family of kernels serves every kind (ScoreArgs); kinds differ in how rows and queries are made.
//
// An index may have to *learn* before it can tell entries apart: from sums over a prompt's keys and queries,
// or, if prompts were too short for that, from the keys that are stored.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "platform/base/random.h"
#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/kv/plan/kv_step.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

// A layer's keys of a prompt, as prefill has them on the device.
class PromptKeys {
 public:
  virtual ~PromptKeys() = default;
  // Of entries `begin` to the prompt's end: (k - mean) . key_side, float [n, rank], with the first one's
  // position.
  using ProjectedFn = std::function<Status(uint32_t first, std::span<const float> projected)>;
  virtual Status Project(uint32_t begin, const IndexSides& sides, uint32_t rank,
                         const ProjectedFn& visit) = 0;
};

// Keys of entries that a cache has, wherever they lie, decoded on the host.
class StoredKeys {
 public:
  virtual ~StoredKeys() = default;
  virtual uint32_t n_sequences() const = 0;
  virtual uint32_t length(uint32_t sequence) const = 0;
  // From entry `begin` on, float [n, key_dim], with the first one's position.
  using KeysFn = std::function<Status(uint32_t first, std::span<const float> keys)>;
  virtual Status Visit(uint32_t layer, uint32_t sequence, uint32_t begin, const KeysFn& visit) = 0;
};

// Entries [begin, end) of a sequence.
struct KvRange {
  uint32_t sequence = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

class KvIndex {
 public:
  virtual ~KvIndex() = default;

  // --- While decoding.
  // Sides, rows, their shape, and the query's form; the rest of `args` stays. An index of lists of each KV
  // head makes a row of each head of a row: `args` is about those then.
  virtual void FillScore(uint32_t layer, ScoreArgs* args) const = 0;
  // What ScoreArgs::scratch must hold, for what `args` asks and for RecordSearch.
  virtual uint64_t ScoreScratchBytes(const Device& device, const ScoreArgs& args) const {
    return device.ScoreScratchBytes(args);
  }
  // Records a search that goes with the layer's selection, in the same list; `scratch` is that of the score.
  virtual Status RecordSearch(CommandList& /*list*/, uint32_t /*layer*/, uint32_t /*n_rows*/,
                              Buffer* /*scratch*/) const {
    return Status::Ok();
  }
  // Before a step is submitted: what its lists read besides what they were recorded with.
  virtual Status WriteInputs(const KvStepInputs& /*inputs*/) { return Status::Ok(); }
  // KV thread, of rows that are not in memory: when the layer is served, and before the device goes on; when
  // a step has succeeded, in advance of the next.
  virtual Status EndLayer(uint32_t /*layer*/) { return Status::Ok(); }
  virtual Status PrepareStep() { return Status::Ok(); }
  // Rows are made from stored records (NoteStored), those of prompts too.
  virtual bool takes_records() const { return false; }
  // Whole groups of a stream went to the store: records [n], from `first_group` on.
  virtual Status NoteStored(uint32_t /*layer*/, uint32_t /*stream*/, uint32_t /*first_group*/,
                            std::span<const std::byte> /*records*/) {
    return Status::Ok();
  }
  // Rows of what steps add are made from the keys of whole groups (NoteKeys).
  virtual bool takes_keys() const { return false; }
  // A group of a sequence that a step has completed goes to the store: its K, normalised and rotated, float
  // [group_tokens, key_dim]. No choice can name it yet.
  virtual Status NoteKeys(uint32_t /*layer*/, uint32_t /*sequence*/, uint32_t /*group*/,
                          std::span<const float> /*keys*/) {
    return Status::Ok();
  }

  // --- Entries that a choice need not find: they are attended to wherever they lie (StaticSet).
  // Of a group of a stream, these entries (ascending) from now on, and no others: what was taken out before
  // is back. `record` as stored; empty: the group is not whole, and nothing is taken out. Not while a step
  // is under way.
  virtual Status TakeOut(uint32_t /*layer*/, uint32_t /*stream*/, uint32_t /*group*/,
                         std::span<const std::byte> /*record*/, std::span<const uint32_t> /*entries*/) {
    return Status::Ok();
  }

  // --- Learning. What has not learned scores all entries alike.
  virtual bool is_ready() const { return true; }
  // Fewer entries say little about the keys to come: nothing is learned from them.
  virtual uint32_t min_entries_to_learn() const { return 0; }
  // A layer's sums over a prompt. The layer's IndexPrompt follows, or, after an error, ForgetLearned.
  virtual Status Learn(uint32_t /*layer*/, const LayerSums& /*sums*/) { return Status::Ok(); }
  // Before a prompt: what an earlier one that failed has left for IndexPrompt.
  virtual void ForgetLearned() {}
  // All layers have learned.
  virtual void NoteReady() {}
  // Before a step of layers that have not learned.
  virtual Status PrepareBlank(uint32_t /*layer*/) { return Status::Ok(); }
  // From stored keys of `sequence`, without queries; then the rows of all sequences. After an error it is not
  // ready, and rows may be of some layers.
  virtual Status LearnFromStored(uint32_t /*sequence*/, StoredKeys& /*stored*/) { return Status::Ok(); }

  // --- Prefill.
  // Rows of a prompt's entries; where the layer has just learned, of all entries that were there before too.
  virtual Status IndexPrompt(uint32_t /*layer*/, const KvRange& /*prompt*/, PromptKeys& /*keys*/,
                             StoredKeys& /*stored*/) {
    return Status::Ok();
  }
  // --- Saves, loads or counts what is known of sequences of these lengths. As KvLedger::VisitState.
  virtual Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) = 0;

  // For benchmarks: rows of the first `n` entries as they might be. NoteStored is called too.
  virtual Status FillAtRandom(uint32_t /*layer*/, uint32_t /*sequence*/, uint32_t /*n*/, Random& /*random*/) {
    return Status::Ok();
  }
};

}  // namespace kvrun
