// A page's stored bounds are bounds: no entry's product with a query is above the score that they give. Of a
// million pages at random, in double.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "runtime/device/open_device.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/index/page_index.h"
#include "runtime/kv/math/page_bounds.h"
#include "runtime/kv/memory/host_buffer.h"
#include "runtime/model/tensor_type.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kPagesAtOnce = 8192;

class PageIndexBounds : public ::testing::Test {
 protected:
  // A float of either sign and a magnitude from 2^-28 to 2^11, now and then 0: bounds that f16 holds exactly,
  // that it rounds, and that are too small for it.
  float RandomValue() {
    const uint64_t bits = random_();
    if (bits % 32 == 0) return 0.0F;
    const auto exponent = static_cast<uint32_t>(127 - 28 + (bits >> 8) % 39);
    const auto sign_and_mantissa = static_cast<uint32_t>(bits >> 32) & 0x807FFFFFU;
    return std::bit_cast<float>(sign_and_mantissa | exponent << 23);
  }

  // Pages of one shape, and as many queries; how many scores were below a product.
  uint64_t CountBroken(KvType type, uint32_t tokens, uint32_t dim, uint32_t left_out) {
    KvPlan plan;
    plan.n_streams = 1;
    plan.n_ctx = kPagesAtOnce * tokens;
    plan.record = {type, type, 1, dim, tokens};
    plan.index = {KvType::kF16, 2 * dim, tokens, kPagesAtOnce, 1, 1};
    const auto index = OrDie(PageIndex::Create(*device_, plan, 1, MinMaxBounds));
    KvRecordShape exact = plan.record;
    exact.k_type = exact.v_type = KvType::kF32;
    std::vector<float> values(exact.size_bytes() / sizeof(float));
    const uint64_t bytes = plan.record.size_bytes();
    std::vector<std::byte> records(kPagesAtOnce * bytes);
    for (uint32_t page = 0; page < kPagesAtOnce; ++page) {
      for (uint32_t i = 0; i < tokens * dim; ++i) values[i] = RandomValue();  // K alone
      TranscodeRecord(exact, std::as_bytes(std::span(values)), plan.record,
                      std::span(records).subspan(page * bytes, bytes));
    }
    RunOrDie(index->NoteStored(0, 0, 0, records));
    ScoreArgs args;
    index->FillScore(0, &args);
    const auto* row = reinterpret_cast<const uint16_t*>(Words(const_cast<Buffer&>(*args.index)).data());
    std::vector<float> keys(size_t{tokens} * dim);
    const std::array<uint32_t, 1> out = {tokens - 1};
    uint64_t n_broken = 0;
    for (uint32_t page = 0; page < kPagesAtOnce; ++page, row += 2 * size_t{dim}) {
      const auto record = std::span<const std::byte>(records).subspan(page * bytes, bytes);
      if (left_out > 0) RunOrDie(index->TakeOut(0, 0, page, record, out));
      DecodeKeys(plan.record, record, dim, keys);
      n_broken += IsBroken(std::span(keys).first(size_t{tokens - left_out} * dim), {row, 2 * size_t{dim}});
    }
    n_pages_ += kPagesAtOnce;
    return n_broken;
  }

  // Products add up in the order of the score's, so that what rounds in double rounds both: no tolerance.
  bool IsBroken(std::span<const float> keys, std::span<const uint16_t> row) {
    const size_t dim = row.size() / 2;
    std::array<double, 8> query = {};
    double score = 0.0;
    for (size_t c = 0; c < dim; ++c) {
      query[c] = RandomValue();
      score += query[c] * HalfToFloat(row[query[c] > 0 ? c : dim + c]);
    }
    for (size_t i = 0; i < keys.size(); i += dim) {
      double product = 0.0;
      for (size_t c = 0; c < dim; ++c) product += query[c] * keys[i + c];
      if (!(product <= score)) return true;
    }
    return false;
  }

  std::unique_ptr<Device> device_ = OrDie(OpenDevice({.device = "host", .n_threads = 1}));
  std::mt19937_64 random_{20260101};
  uint64_t n_pages_ = 0;
};

TEST_F(PageIndexBounds, NoProductIsAboveAScore) {
  while (n_pages_ < 1'000'000) {
    for (const KvType type : {KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
      for (const auto& [tokens, dim] : {std::pair{1U, 4U}, {2U, 8U}, {3U, 2U}, {5U, 4U}}) {
        ASSERT_EQ(CountBroken(type, tokens, dim, 0), 0U) << static_cast<int>(type) << ", pages of " << tokens;
      }
      ASSERT_EQ(CountBroken(type, 4, 4, 1), 0U) << static_cast<int>(type) << ", the last entry left out";
    }
  }
  EXPECT_GE(n_pages_, 1'000'000U);
}

}  // namespace
}  // namespace kvrun::testing
