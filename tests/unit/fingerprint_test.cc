#include "runtime/model/fingerprint.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/support/gguf_builder.h"
#include "tests/support/or_die.h"

namespace kvrun {
namespace {

using testing::Bytes;
using testing::GgufBuilder;
using testing::OrDie;
using testing::TinyModel;
using testing::TinyModelOptions;

std::string FingerprintOf(const Bytes& bytes) {
  const auto file = OrDie(GgufFile::Parse(bytes, "model.gguf"));
  return OrDie(ModelFingerprint(*file, OrDie(ReadModelConfig(*file))));
}

std::string FingerprintOf(const GgufBuilder& builder) { return FingerprintOf(builder.Build()); }

TEST(ModelFingerprint, IsStableAndOfThirtyTwoDigits) {
  const std::string fingerprint = FingerprintOf(TinyModel());
  EXPECT_EQ(fingerprint, FingerprintOf(TinyModel()));
  EXPECT_EQ(fingerprint.size(), 32U);
  EXPECT_EQ(fingerprint.find_first_not_of("0123456789abcdef"), std::string::npos);
  // Adapter files hold it: it must not change with the version of kvrun, the compiler or the machine.
  EXPECT_EQ(fingerprint, "39e64d567619a8ee4db80313fc16fa53");
}

TEST(ModelFingerprint, NamesAndVocabularyDoNotCount) {
  GgufBuilder renamed = TinyModel();
  renamed.Set("general.name", "another").Set("tokenizer.chat_template", "x").Set("note", uint32_t{1});
  EXPECT_EQ(FingerprintOf(renamed), FingerprintOf(TinyModel()));
}

TEST(ModelFingerprint, WeightsShapesAndHyperParametersCount) {
  std::set<std::string> seen = {FingerprintOf(TinyModel())};
  TinyModelOptions other_weights;
  other_weights.seed = 2;
  EXPECT_TRUE(seen.insert(FingerprintOf(TinyModel(other_weights))).second);
  TinyModelOptions more_layers;
  more_layers.n_layers = 3;
  EXPECT_TRUE(seen.insert(FingerprintOf(TinyModel(more_layers))).second);
  GgufBuilder other_base = TinyModel();
  other_base.Set("llama.rope.freq_base", 20000.0F);
  EXPECT_TRUE(seen.insert(FingerprintOf(other_base)).second);
  GgufBuilder other_epsilon = TinyModel();
  other_epsilon.Set("llama.attention.layer_norm_rms_epsilon", 2e-5F);
  EXPECT_TRUE(seen.insert(FingerprintOf(other_epsilon)).second);
}

// The first and last bytes of every tensor are in the sample.
TEST(ModelFingerprint, OneChangedByteCounts) {
  const GgufBuilder model = TinyModel();
  Bytes bytes = model.Build();
  const std::string before = FingerprintOf(bytes);
  bytes[model.HeaderBytes()] ^= std::byte{1};
  EXPECT_NE(FingerprintOf(bytes), before);
  bytes[model.HeaderBytes()] ^= std::byte{1};
  bytes.back() ^= std::byte{1};
  EXPECT_NE(FingerprintOf(bytes), before);
}

}  // namespace
}  // namespace kvrun
