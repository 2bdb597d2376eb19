// Means of layers and sequences, and keys as they were before they were stored.
#include "runtime/kv/memory/entry_spaces.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/entry_space.h"
#include "runtime/device/open_device.h"
#include "runtime/device/record_codec.h"
#include "runtime/device/self_test_data.h"
#include "runtime/model/half_float.h"
#include "tests/support/or_die.h"

namespace kvrun {
namespace {

using testing::OrDie;

class EntrySpacesTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kDim = 16;
  static constexpr uint32_t kKvHeads = 3;
  static constexpr uint32_t kLayers = 2;
  static constexpr uint32_t kMeans = kKvHeads * 2 * kDim;  // of a sequence

  EntrySpaces Create(uint32_t heads_of_record, bool rotates = true) {
    plan_.rotates = rotates;
    plan_.n_sequences = 2;
    plan_.record = {KvType::kF32, KvType::kF32, heads_of_record, kDim, 4};
    plan_.n_streams = plan_.n_sequences * (kKvHeads / heads_of_record);
    return OrDie(EntrySpaces::Create(*device_, plan_, kLayers));
  }
  static std::span<const float> Constants(const EntrySpace& space) {
    const std::span<std::byte> bytes = const_cast<Buffer*>(space.constants)->host();
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

  std::unique_ptr<Device> device_ = OrDie(OpenDevice({.device = "host", .n_threads = 1}));
  KvPlan plan_;
};

TEST_F(EntrySpacesTest, AreNotUsedWhereNothingIsRotated) {
  const EntrySpaces spaces = Create(1, false);
  EXPECT_FALSE(spaces.are_used());
  EXPECT_FALSE(spaces.space(0).is_used());
  EXPECT_FALSE(spaces.space(1, 1).is_used());
  EXPECT_TRUE(spaces.MeanKey(0, 0).empty());
  const std::vector<float> record = RandomFloats(2 * 4 * kDim, 1);
  std::vector<float> keys(4 * kDim);
  spaces.DecodeKeys(0, 0, plan_.record, std::as_bytes(std::span(record)), kDim, keys);
  EXPECT_EQ(keys, std::vector<float>(record.begin(), record.begin() + 4 * kDim));
}

// Norms, then the means of each sequence; each layer has its own.
TEST_F(EntrySpacesTest, LayConstantsOutAsKernelsReadThem) {
  EntrySpaces spaces = Create(1);
  const std::vector<float> norms = RandomFloats(2 * kDim, 2);
  const std::vector<float> means = RandomFloats(kMeans, 3);
  ASSERT_TRUE(spaces.SetNorms(1, norms).ok());
  EXPECT_FALSE(spaces.has_means(1, 1));
  ASSERT_TRUE(spaces.SetMeans(1, 1, means).ok());
  EXPECT_TRUE(spaces.has_means(1, 1));
  EXPECT_FALSE(spaces.has_means(1, 0) || spaces.has_means(0, 1));

  const EntrySpace all = spaces.space(1);
  const std::span<const float> constants = Constants(all);
  ASSERT_EQ(constants.size(), 2 * kDim + 2 * kMeans);
  EXPECT_EQ(constants.size_bytes() * kLayers, EntrySpaces::MemoryBytes(plan_, kKvHeads, kLayers));
  EXPECT_EQ(all.means_begin, 2 * kDim);
  EXPECT_EQ(spaces.space(1, 1).means_begin, 2 * kDim + kMeans);
  EXPECT_TRUE(std::equal(norms.begin(), norms.end(), constants.begin()));
  EXPECT_TRUE(std::equal(means.begin(), means.end(), constants.begin() + 2 * kDim + kMeans));
  for (const float mean : constants.subspan(2 * kDim, kMeans)) EXPECT_EQ(mean, 0.0F);
  for (const float value : Constants(spaces.space(0))) EXPECT_EQ(value, 0.0F);
}

TEST_F(EntrySpacesTest, ForgetTheMeansOfASequence) {
  EntrySpaces spaces = Create(1);
  const std::vector<float> means = RandomFloats(kMeans, 3);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (const uint32_t sequence : {0U, 1U}) ASSERT_TRUE(spaces.SetMeans(layer, sequence, means).ok());
  }
  ASSERT_TRUE(spaces.Forget(0).ok());
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_FALSE(spaces.has_means(layer, 0));
    EXPECT_TRUE(spaces.has_means(layer, 1));
    const std::span<const float> constants = Constants(spaces.space(layer));
    for (const float mean : constants.subspan(2 * kDim, kMeans)) EXPECT_EQ(mean, 0.0F);
    EXPECT_TRUE(std::equal(means.begin(), means.end(), constants.begin() + 2 * kDim + kMeans));
  }
}

// Until a sequence has its own, and again when it is forgotten.
TEST_F(EntrySpacesTest, BeginWithTheMeansOfAFile) {
  static_cast<void>(Create(1));  // the plan
  plan_.adapter.is_from_file = true;
  std::vector<float> file = RandomFloats(size_t{kLayers} * kMeans, 5);
  for (float& mean : file) mean = HalfToFloat(FloatToHalf(mean));  // as they are kept
  const std::vector<float> own = RandomFloats(kMeans, 3);
  EntrySpaces spaces = OrDie(EntrySpaces::Create(*device_, plan_, kLayers, file));
  const auto means_of = [&](uint32_t layer, uint32_t sequence) {
    const auto means = Constants(spaces.space(layer)).subspan(2 * kDim + sequence * kMeans, kMeans);
    return std::vector<float>(means.begin(), means.end());
  };
  const auto of_file = [&](uint32_t layer) {
    return std::vector<float>(file.begin() + layer * kMeans, file.begin() + (layer + 1) * kMeans);
  };
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (const uint32_t sequence : {0U, 1U}) {
      EXPECT_FALSE(spaces.has_means(layer, sequence)) << "others may still take their place";
      EXPECT_EQ(means_of(layer, sequence), of_file(layer));
    }
  }
  ASSERT_TRUE(spaces.SetMeans(1, 1, own).ok());
  EXPECT_EQ(means_of(1, 1), own);
  ASSERT_TRUE(spaces.Forget(1).ok());
  EXPECT_EQ(means_of(1, 1), of_file(1));
  EXPECT_FALSE(spaces.has_means(1, 1));
  const uint64_t constants = Constants(spaces.space(0)).size_bytes();
  EXPECT_EQ(EntrySpaces::MemoryBytes(plan_, kKvHeads, kLayers),
            constants * kLayers + file.size() * sizeof(uint16_t));
}

// Of streams of all heads and of one head, of either sequence.
TEST_F(EntrySpacesTest, DecodeKeysAsTheyWere) {
  for (const uint32_t heads : {1U, kKvHeads}) {
    EntrySpaces spaces = Create(heads);
    const std::vector<float> means = RandomFloats(kMeans, 4);
    ASSERT_TRUE(spaces.SetMeans(1, 1, means).ok());
    const uint32_t columns = heads * kDim;
    const std::vector<float> keys = RandomFloats(size_t{4} * columns, 5);
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      const uint32_t streams = kKvHeads / heads;
      std::vector<float> record(2 * keys.size());
      for (uint32_t head = 0; head < heads; ++head) {
        const uint32_t plane = 2 * (stream % streams * heads + head);
        std::vector<float> mean(kDim);
        if (stream / streams == 1) std::copy_n(means.begin() + plane * kDim, kDim, mean.begin());
        for (uint32_t entry = 0; entry < 4; ++entry) {
          const auto row = std::span(record).subspan((head * 4 + entry) * size_t{kDim}, kDim);
          std::copy_n(keys.begin() + entry * columns + head * kDim, kDim, row.begin());
          IntoSpace(mean, row);
        }
      }
      std::vector<float> found(keys.size());
      spaces.DecodeKeys(1, stream, plan_.record, std::as_bytes(std::span(record)), columns, found);
      for (size_t i = 0; i < keys.size(); ++i) EXPECT_NEAR(found[i], keys[i], 1e-5) << i;
      if (heads > 1) continue;
      const std::span<const float> mean = spaces.MeanKey(1, stream);
      ASSERT_EQ(mean.size(), kDim);
      EXPECT_EQ(mean[3], stream / kKvHeads == 1 ? means[size_t{2} * kDim * (stream % kKvHeads) + 3] : 0.0F);
    }
  }
}

// Records of two groups, of all heads together and of each by itself.
TEST_F(EntrySpacesTest, MeansAreThoseOfAllEntries) {
  for (const uint32_t heads : {1U, kKvHeads}) {
    const KvRecordShape shape{KvType::kF16, KvType::kF16, heads, kDim, 2};
    const KvRecordShape f32{KvType::kF32, KvType::kF32, heads, kDim, 2};
    constexpr uint32_t kRecords = 2;
    std::vector<std::byte> records(kRecords * (kKvHeads / heads) * shape.size_bytes());
    const std::vector<float> values = RandomFloats(records.size() / 2, 6);
    std::vector<double> expected(kMeans);
    for (uint32_t i = 0; i < kRecords * (kKvHeads / heads); ++i) {
      const auto rows =
          std::span(values).subspan(size_t{i} * 2 * f32.n_rows() * kDim, 2 * f32.n_rows() * kDim);
      TranscodeRecord(f32, std::as_bytes(rows), shape,
                      std::span(records).subspan(i * shape.size_bytes(), shape.size_bytes()));
      for (size_t at = 0; at < rows.size(); ++at) {
        const size_t plane = at / (f32.n_rows() * kDim);
        const size_t head = i / kRecords * heads + at / kDim % f32.n_rows() / 2;
        expected[(2 * head + plane) * kDim + at % kDim] += rows[at] / 4;
      }
    }
    EntryMeans means(kKvHeads, kDim);
    means.Add(shape, records);
    EXPECT_EQ(means.n_entries(), 4U);
    const std::vector<float> found = means.Means();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 0x1p-11) << i;
    means.Add(shape, records);
    EXPECT_EQ(means.n_entries(), 8U);
    EXPECT_EQ(means.Means(), found);
  }
}

}  // namespace
}  // namespace kvrun
