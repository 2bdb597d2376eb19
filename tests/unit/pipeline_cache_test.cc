#include "platform/vulkan/pipeline_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kvrun {
namespace {

const PipelineCacheKey kKey{0x5143, 0x43050a01, 7, "00112233445566778899aabbccddeeff", 0x1234567890};

std::vector<std::byte> Payload() {
  std::vector<std::byte> payload(100);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 3);
  return payload;
}

TEST(PipelineCacheFile, RoundTrips) {
  const std::vector<std::byte> file = EncodePipelineCache(kKey, Payload());
  const auto payload = DecodePipelineCache(kKey, file);
  ASSERT_TRUE(payload.ok()) << payload.status().message();
  EXPECT_EQ(std::vector<std::byte>(payload->begin(), payload->end()), Payload());
}

TEST(PipelineCacheFile, AnyOtherKeyIsRejected) {
  const std::vector<std::byte> file = EncodePipelineCache(kKey, Payload());
  std::vector<PipelineCacheKey> others(5, kKey);
  others[0].vendor_id = 1;
  others[1].device_id = 1;
  others[2].driver_version = 8;
  others[3].device_uuid[31] = '0';
  others[4].shaders_hash = 1;
  for (const PipelineCacheKey& other : others) {
    const auto payload = DecodePipelineCache(other, file);
    ASSERT_FALSE(payload.ok());
    EXPECT_NE(payload.status().message().find("another device"), std::string::npos);
  }
}

TEST(PipelineCacheFile, EveryFlippedByteIsRejected) {
  const std::vector<std::byte> good = EncodePipelineCache(kKey, Payload());
  for (size_t i = 0; i < good.size(); ++i) {
    std::vector<std::byte> file = good;
    file[i] ^= std::byte{1};
    EXPECT_FALSE(DecodePipelineCache(kKey, file).ok()) << "byte " << i;
  }
}

TEST(PipelineCacheFile, EveryOtherLengthIsRejected) {
  std::vector<std::byte> file = EncodePipelineCache(kKey, Payload());
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_FALSE(DecodePipelineCache(kKey, std::span(file).first(length)).ok()) << length;
  }
  file.push_back(std::byte{0});
  EXPECT_FALSE(DecodePipelineCache(kKey, file).ok());
}

}  // namespace
}  // namespace kvrun
