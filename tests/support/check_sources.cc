#include "tests/support/check_sources.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/device/self_test_data.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/scalar_reference.h"
#include "tests/support/slot_cases.h"
#include "tests/support/slot_reference.h"

namespace kvrun::testing {
namespace {

// Six standard deviations of what attend_few_rounded-inl.h rounds: queries, whose elements are uniform, to
// steps of their length, and weights to those of the largest. No average over entries is counted on.
double RoundedTolerance(const SlotCase& c) {
  const double score = kSlotQueryScale / 3 * std::sqrt(c.head_dim()) * std::sqrt(1.0 / 12) / 32700;
  return 6 * (score + std::sqrt(1.0 / 12) / 32767);
}

}  // namespace

void CheckSources(Device& device, const SlotCase& c, std::span<const SlotShape> shapes,
                  std::span<const SlotData> sources, bool uneven) {
  SelfTestRun run(device);
  std::vector<float> qkv = kvrun::RandomFloats(c.qkv_count(), 42);
  for (float& value : qkv) value *= kSlotQueryScale;
  SlotAttentionArgs args = c.args();
  std::vector<SlotReferenceSource> references;
  uint32_t most_entries = 0;
  bool has_biases = false;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const SlotData& data = sources[i];
    const bool is_there = shapes[i].n_slots != 0;
    references.push_back({shapes[i], data.slots, data.tables});
    args.Add({.slots = is_there ? Words(run, data.slots) : nullptr,
              .shape = shapes[i],
              .table = is_there ? Words(run, data.tables) : nullptr});
    most_entries += data.most_entries;
    has_biases = has_biases || shapes[i].has_biases;
  }
  const std::vector<float> constants = SpaceConstants(c);
  SlotReferenceArgs reference = c.reference(references);
  if (c.in_space) {
    args.space = EntrySpace::OfSequences(run.Floats(constants), c.head_dim());
    reference.means = std::span(constants).subspan(size_t{2} * c.head_dim());
  }
  const std::vector<double> expected = AttendSlotsReference(reference, qkv);
  args.attention.qkv = run.Floats(qkv);
  args.attention.step = run.Step(c.tokens);
  args.attention.output = PoisonedBuffer(run, Untouched(expected.size()));
  const size_t scratch_floats = device.AttendSlotsScratchBytes(args) / sizeof(float);
  args.attention.scratch = PoisonedBuffer(run, Untouched(scratch_floats));
  run.Run([&](CommandList& list) { return list.AttendSlots(args); });
  double tolerance = AttendTolerance(c, most_entries, has_biases, uneven && AsHost(device) == nullptr);
  if (RoundsActivations(device)) tolerance += RoundedTolerance(c);
  if (c.in_space) {
    tolerance =
        std::sqrt(c.head_dim()) * tolerance + SpaceTolerance(expected, std::vector<float>(expected.size()));
  }
  EXPECT_TRUE(IsClose(run, args.attention.output, expected, tolerance)) << Describe(c);
  std::vector<float> beyond(scratch_floats + kBeyond);
  std::memcpy(beyond.data(), run.Bytes(args.attention.scratch, beyond.size() * sizeof(float)).data(),
              beyond.size() * sizeof(float));
  EXPECT_TRUE(std::all_of(beyond.end() - kBeyond, beyond.end(), [](float v) { return std::isnan(v); }))
      << "scratch: " << Describe(c);
}

}  // namespace kvrun::testing
