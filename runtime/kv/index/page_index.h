// An index of pages (groups): one row for each, of an upper and a lower bound of its keys' columns. A query's
// largest product with keys between the bounds is the page's score (QueryForm::kSigned).
//
// Rows are made of stored records, so they bound what is attended to. A page that is not complete has none:
// it lies in the window.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/memory/entry_spaces.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// Bounds of a page's keys, float [n, dim]: upper and lower [dim].
using PageBoundsFn = void (*)(std::span<const float> keys, std::span<float> upper, std::span<float> lower);

class PageIndex final : public KvIndex {
 public:
  // Plan and spaces must outlive it; its index has one row of 2 * key_dim f16 columns for each group.
  static Result<std::unique_ptr<PageIndex>> Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                   PageBoundsFn bounds,
                                                   const EntrySpaces& spaces = EntrySpaces::None());

  void FillScore(uint32_t layer, ScoreArgs* args) const override;
  bool takes_records() const override { return true; }
  Status NoteStored(uint32_t layer, uint32_t stream, uint32_t first_group,
                    std::span<const std::byte> records) override;
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) override;
  // Bounds are those of the entries that are left.
  Status TakeOut(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> record,
                 std::span<const uint32_t> entries) override;

 private:
  void WritePage(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> record,
                 std::span<const uint32_t> left_out);
  uint64_t page_bytes() const { return uint64_t{plan_.index.group_words()} * sizeof(uint32_t); }
  uint64_t PageOffset(uint32_t stream, uint32_t group) const {
    return (uint64_t{stream / plan_.heads_per_sequence()} * plan_.index.n_groups + group) * page_bytes();
  }

  PageIndex(const KvPlan& plan, PageBoundsFn bounds, const EntrySpaces& spaces)
      : plan_(plan), spaces_(spaces), bounds_(bounds) {}

  const KvPlan& plan_;
  const EntrySpaces& spaces_;
  PageBoundsFn bounds_;
  std::vector<std::unique_ptr<Buffer>> rows_;  // of each layer: kShared, IndexShape
  std::unique_ptr<Buffer> scales_;             // ones
  std::vector<float> keys_;                    // [group_tokens, columns of a stream]
  std::vector<float> bounds_of_page_;          // [2, columns of a stream]
};

}  // namespace kvrun
