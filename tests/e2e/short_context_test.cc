// A context that is shorter than a model's window.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/pass/device_weights.h"
#include "runtime/model/synthetic_model.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_shape.h"

namespace kvrun::testing {
namespace {

// Layers 2 and 5 attend to the whole text, the others to 512 tokens.
LoadedModel WideWindows() {
  SyntheticShape shape = TinyShape(6);
  shape.architecture = "gemma3";
  shape.kinds = "wwa";
  shape.sliding_window = 512;
  LoadedModel loaded;
  loaded.device = SharedDevice();
  loaded.model = OrDie(MakeSyntheticModel(shape));
  loaded.weights = OrDie(LoadDeviceWeights(*loaded.model->file, loaded.model->config, loaded.model->weights,
                                           *loaded.device, {}));
  return loaded;
}

TEST(ShortContext, IsComputedAsALongOneIs) {
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  const LoadedModel loaded = WideWindows();
  const std::vector<int> ids = SomeIds(60, 3, kTinyShape.n_vocab);
  const auto logits = [&](uint32_t n_ctx) {
    const auto pass = loaded.NewPass({.n_ctx = n_ctx, .kv_type = KvType::kF32});
    return Feed(*pass, ids, 0, ids.size(), 20);
  };
  const std::vector<float> expected = logits(1024);
  for (const uint32_t n_ctx : {60U, 300U, 520U})
    EXPECT_LE(CompareLogits(expected, logits(n_ctx), kTinyShape.n_vocab).max_absolute, 1e-4) << n_ctx;
}

TEST(ShortContext, IsPlannedAndReadFromFlash) {
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  const LoadedModel loaded = WideWindows();
  const TemporaryFolder folder;
  const std::vector<int> ids = SomeIds(60, 3, kTinyShape.n_vocab);
  const auto full = loaded.NewPass({.n_ctx = 64, .kv_type = KvType::kF16});
  const auto pass =
      loaded.NewPass({.n_ctx = 64,
                      .offloaded = OffloadedOptionsOrDie(
                          loaded, folder, "--kv-method kvswap --kv-type f32 --kv-select 60", 64)});
  EXPECT_LE(CompareLogits(Feed(*full, ids, 0, ids.size(), 20), Feed(*pass, ids, 0, ids.size(), 20),
                          kTinyShape.n_vocab)
                .max_absolute,
            0.03);
}

}  // namespace
}  // namespace kvrun::testing
