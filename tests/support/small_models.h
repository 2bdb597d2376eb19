// Models small enough for many runs: one that needs no file, and those of ../shared that are there.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/plan/kv_method.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {

struct SmallModel {
  std::string name;
  std::string path;  // empty: self-made
};
std::vector<SmallModel> SmallModels();
// On the shared device, where none is given; a self-made one is written to `folder`.
LoadedModel LoadSmallModel(const SmallModel& model, const TemporaryFolder& folder, Device* device = nullptr);

// The self-made one with so many layers.
LoadedModel LoadDeepModel(uint32_t n_layers, const TemporaryFolder& folder, Device* device = nullptr);

// What the model's device holds for KV.
uint64_t KvBytesInUse(const LoadedModel& loaded);

// Of a test that is instantiated for methods: their names, as far as a test's may have their letters.
std::string MethodTestName(const ::testing::TestParamInfo<KvMethod>& source);

// What the options of a command line make of the model's KV, with its file in `folder`.
std::shared_ptr<OffloadedPassOptions> OffloadedOptionsOrDie(const LoadedModel& loaded,
                                                            const TemporaryFolder& folder,
                                                            const std::string& options, uint32_t n_ctx,
                                                            uint32_t n_sequences = 1);

// Different for every seed.
std::vector<int> SomeIds(size_t n, size_t seed, size_t n_vocab);

// Feeds ids[begin, end) to a sequence, `chunk` at a time, and answers the logits of the last.
std::vector<float> Feed(ForwardPass& pass, std::span<const int> ids, size_t begin, size_t end, size_t chunk,
                        uint32_t sequence = 0);

}  // namespace kvrun::testing
