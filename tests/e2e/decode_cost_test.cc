// What a decoded token may not cost: memory from the heap, a new pipeline, a wait for all of the queue.
#include <gtest/gtest.h>
#include <volk.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/capi/handles.h"
#include "runtime/device/vulkan/compute_device.h"
#include "runtime/include/kvrun/kvrun.h"
#include "runtime/kv/plan/kv_method.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/architecture_fixture.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kContext = 256;
constexpr uint32_t kPrompt = 90;
constexpr uint32_t kTokens = 60;
constexpr uint32_t kUncounted = 2;  // tokens at the beginning, which make lists, pipelines and buffers

// Calls that the driver gets in place of its own, and hands on.
struct VulkanCalls {
  static inline std::atomic<uint64_t> pipelines;
  static inline std::atomic<uint64_t> waits_for_all;
  static inline PFN_vkCreateComputePipelines create_pipelines = nullptr;
  static inline PFN_vkQueueWaitIdle wait_for_queue = nullptr;
  static inline PFN_vkDeviceWaitIdle wait_for_device = nullptr;

  static VkResult CreatePipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                  const VkComputePipelineCreateInfo* infos,
                                  const VkAllocationCallbacks* callbacks, VkPipeline* made) {
    pipelines += count;
    return create_pipelines(device, cache, count, infos, callbacks, made);
  }
  static VkResult WaitForQueue(VkQueue queue) {
    ++waits_for_all;
    return wait_for_queue(queue);
  }
  static VkResult WaitForDevice(VkDevice device) {
    ++waits_for_all;
    return wait_for_device(device);
  }

  // Of a device that the caller made and nobody uses yet.
  static void Count(const VulkanDevice& device) {
    auto& table = const_cast<VolkDeviceTable&>(device.vk());
    create_pipelines = std::exchange(table.vkCreateComputePipelines, &CreatePipelines);
    wait_for_queue = std::exchange(table.vkQueueWaitIdle, &WaitForQueue);
    wait_for_device = std::exchange(table.vkDeviceWaitIdle, &WaitForDevice);
    pipelines = waits_for_all = 0;
  }
};

// What is counted from one token to the last.
struct Counted {
  uint32_t tokens = 0;
  uint64_t text_bytes = 0;
  uint64_t pipelines_before = 0;
  uint64_t waits_before = 0;
  std::optional<OwnAllocations> allocations;
  // At the end.
  uint64_t own_allocations = 0;
  std::vector<std::string> stacks;
  uint64_t pipelines = 0;
  uint64_t waits = 0;
};

int OnToken(void* user, uint32_t sequence, int32_t token, const char* /*text*/, size_t text_bytes) {
  auto& counted = *static_cast<Counted*>(user);
  counted.text_bytes += text_bytes;
  if (sequence != 0 || token < 0) return 0;
  ++counted.tokens;
  if (counted.tokens == kUncounted) {
    counted.pipelines_before = VulkanCalls::pipelines;
    counted.waits_before = VulkanCalls::waits_for_all;
    counted.allocations.emplace();
  }
  if (counted.tokens == kTokens) {
    counted.own_allocations = counted.allocations->count();
    counted.pipelines = VulkanCalls::pipelines - counted.pipelines_before;
    counted.waits = VulkanCalls::waits_for_all - counted.waits_before;
    counted.stacks = counted.allocations->stacks();
    counted.allocations.reset();
  }
  return 0;
}

// Whatever it says is longer than what a std::string holds by itself. More layers than an index that lies on
// flash has rows of in memory.
GgufBuilder ModelOfLongTokens() {
  GgufBuilder model = TalkingModel(5);
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};  // unknown, control, control, then normal ones
  while (tokens.size() < 300) {
    tokens.push_back("a token of more than fifteen bytes, number " + std::to_string(tokens.size()));
    types.push_back(1);
  }
  model.SetStrings("tokenizer.ggml.tokens", tokens).SetArray("tokenizer.ggml.token_type", types);
  return model;
}

class DecodeCost : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    Open(WriteModel(folder_, "tiny.gguf", ModelOfLongTokens().Build()));
  }
  void TearDown() override {
    kvrun_engine_destroy(engine_);
    kvrun_model_close(model_);
  }

  void Open(const std::string& path) {
    ASSERT_EQ(kvrun_model_open(path.c_str(), &model_), KVRUN_OK) << kvrun_last_error();
    kvrun_engine_options options = EngineOptionsHere();
    // Vulkan's calls are counted; the CPU itself has none.
    is_host_ = options.device != nullptr && std::string(options.device) == "host";
    if (!is_host_) options.device = "vulkan";
    ASSERT_EQ(kvrun_engine_create(model_, &options, &engine_), KVRUN_OK) << kvrun_last_error();
    const auto* device = dynamic_cast<const VulkanComputeDevice*>(&engine_->engine->device());
    ASSERT_EQ(device == nullptr, is_host_);
    if (device != nullptr) VulkanCalls::Count(device->vulkan());
  }
  // In place of the model that is open.
  void Reopen(const std::string& path) {
    TearDown();
    engine_ = nullptr;
    model_ = nullptr;
    Open(path);
  }

  // Feeds prompts of different lengths and generates; answers the statistics of decoding.
  nlohmann::json Generate(std::vector<kvrun_option> kv, uint32_t n_sequences, float temperature,
                          Counted* counted) {
    const std::string kv_folder = folder_.Path("kv");
    kv.insert(kv.end(), {{"dir", kv_folder.c_str()}, {"tmpfs", "on"}});
    kvrun_session_options options;
    kvrun_session_options_init(&options);
    options.n_sequences = n_sequences;
    options.n_ctx = kContext;
    options.kv_options = kv.data();
    options.n_kv_options = kv.size();
    kvrun_session* session = nullptr;
    EXPECT_EQ(kvrun_session_create(engine_, &options, &session), KVRUN_OK) << kvrun_last_error();
    if (session == nullptr) return {};
    std::vector<uint32_t> sequences;
    for (uint32_t s = 0; s < n_sequences; ++s) {
      const std::vector<int> ids = SomeIds(kPrompt + 7 * s, s, kvrun_model_vocab_size(model_));
      EXPECT_EQ(kvrun_session_feed(session, s, ids.data(), ids.size()), KVRUN_OK) << kvrun_last_error();
      sequences.push_back(s);
    }
    kvrun_session_stats_reset(session);
    kvrun_generate_options generate;
    kvrun_generate_options_init(&generate);
    generate.max_tokens = kTokens + 5;
    generate.temperature = temperature;
    generate.ignore_end = 1;
    EXPECT_EQ(
        kvrun_session_generate(session, sequences.data(), n_sequences, &generate, &OnToken, counted, nullptr),
        KVRUN_OK)
        << kvrun_last_error();
    char* text = nullptr;
    EXPECT_EQ(kvrun_session_stats_json(session, &text), KVRUN_OK) << kvrun_last_error();
    nlohmann::json stats = nlohmann::json::parse(text == nullptr ? "{}" : text);
    kvrun_string_free(text);
    kvrun_session_destroy(session);
    return stats;
  }

  static void ExpectNothing(const std::string& name, const Counted& counted) {
    ExpectNoAllocation(name, counted);
    EXPECT_GT(counted.text_bytes, counted.tokens * 20) << name;
  }
  static void ExpectNoAllocation(const std::string& name, const Counted& counted) {
    EXPECT_EQ(counted.tokens, kTokens + 5) << name;
    EXPECT_EQ(counted.own_allocations, 0U) << name;
    for (const std::string& stack : counted.stacks) ADD_FAILURE() << name << ", allocated at" << stack;
    EXPECT_EQ(counted.pipelines, 0U) << name;
    EXPECT_EQ(counted.waits, 0U) << name;
  }

  TemporaryFolder folder_;
  bool is_host_ = false;
  kvrun_model* model_ = nullptr;
  kvrun_engine* engine_ = nullptr;
};

TEST_F(DecodeCost, TheCountersSeeWhatIsCounted) {
  {
    const OwnAllocations allocations;
    const auto text = std::make_unique<std::string>(100, 'x');
    EXPECT_EQ(text->size(), 100U);
    EXPECT_EQ(allocations.count(), 2U);
    EXPECT_EQ(allocations.stacks().size(), 2U);
  }
  Counted counted;
  Generate({{"method", "kvswap"}}, 1, 0.0F, &counted);
  if (!is_host_) {
    EXPECT_GT(VulkanCalls::pipelines, 10U);
  }
}

// A small window: every group that a token completes goes to flash at once, and most that it attends to come
// from there.
TEST_F(DecodeCost, ATokenFromFlashCostsNothingButItself) {
  const std::vector<kvrun_option> small = {{"method", "kvswap"}, {"select", "24"}, {"window", "6"},
                                           {"sinks", "2"},       {"rank", "4"},    {"group", "4"}};
  for (const char* io : {"auto", "aio", "threads"}) {
    for (const float temperature : {0.0F, 0.8F}) {
      for (const uint32_t n_sequences : {1U, 3U}) {
        std::vector<kvrun_option> kv = small;
        kv.push_back({"io", io});
        if (temperature > 0.0F) kv.push_back({"reuse", "3"});  // the rest of them in the pool
        if (n_sequences == 3) kv.push_back({"policy", "lfu"});
        const std::string name = std::string(io) + ", " + std::to_string(n_sequences) + " sequences, " +
                                 std::to_string(temperature);
        Counted counted;
        const nlohmann::json stats = Generate(kv, n_sequences, temperature, &counted);
        ExpectNothing(name, counted);
        EXPECT_GT(stats["kv"].value("bytes_written", 0), 0) << name;
        EXPECT_GT(stats["kv"].value("reads", 0), kTokens) << name;
      }
    }
  }
}

// The static set, and what is left of groups in slots and pool.
TEST_F(DecodeCost, AStaticSetCostsNothingButItself) {
  for (const char* method : {"kvswap", "prkv"}) {
    for (const uint32_t n_sequences : {1U, 3U}) {
      std::vector<kvrun_option> kv = {
          {"method", method}, {"select", "48"}, {"window", "6"}, {"group", "4"}, {"static", "0.25"}};
      if (n_sequences == 3) kv.push_back({"reuse", "3"});
      Counted counted;
      const nlohmann::json stats = Generate(kv, n_sequences, 0.0F, &counted);
      const std::string name = std::string(method) + ", " + std::to_string(n_sequences) + " sequences";
      ExpectNothing(name, counted);
      EXPECT_EQ(stats["kv"]["static"].value("entries", 0), 12) << name;
      EXPECT_GT(stats["kv"].value("reads", 0), kTokens) << name;
    }
  }
}

// Rows of the index are read for each token, and written now and then.
TEST_F(DecodeCost, AnIndexOnFlashCostsNothingButItself) {
  for (const char* io : {"auto", "threads"}) {
    for (const uint32_t n_sequences : {1U, 3U}) {
      Counted counted;
      const nlohmann::json stats = Generate({{"method", "dynakv"},
                                             {"representatives", "flash"},
                                             {"select", "24"},
                                             {"window", "6"},
                                             {"cluster", "4"},
                                             {"io", io}},
                                            n_sequences, 0.0F, &counted);
      const std::string name = std::string(io) + ", " + std::to_string(n_sequences) + " sequences";
      ExpectNothing(name, counted);
      EXPECT_GT(stats["kv"].value("reads", 0), 5 * kTokens) << name;
      EXPECT_GT(stats["kv"].value("bytes_written", 0), 0) << name;
    }
  }
}

TEST_F(DecodeCost, ATokenOfAllOtherMethodsCostsNothingButItself) {
  std::vector<kvrun_option> options = {{"type", "int8"}};
  for (const KvMethod& method : KvMethods()) {
    if (method.name != "kvswap") options.push_back({"method", method.name.data()});
  }
  for (const kvrun_option& kv : options) {
    Counted counted;
    Generate({kv}, 1, 0.0F, &counted);
    ExpectNothing(kv.value, counted);
  }
}

// Windows, delta nets and convolutions, by themselves, beside layers that select half of a text, and within a
// budget.
TEST_F(DecodeCost, ATokenOfLayersWithStatesCostsNothingButItself) {
  const std::vector<kvrun_option> all = {{"method", "full"}};
  const std::vector<kvrun_option> half = {{"method", "kvswap"}, {"select", "60"}, {"window", "6"}};
  const std::vector<kvrun_option> in_budget = {{"method", "kvswap"}, {"budget", "1/2"}};
  uint32_t n_models = 0;
  for (const ArchitectureCase& model : ArchitectureCases()) {
    Reopen(model.model);
    if (engine_->engine->model().config.is_uniform()) continue;
    ++n_models;
    for (const auto* kv : {&all, &half, &in_budget}) {
      Counted counted;
      const nlohmann::json stats = Generate(*kv, 1, 0.0F, &counted);
      ExpectNoAllocation(model.model + ", " + kv->back().name, counted);
      if (kv == &half) {
        EXPECT_LE(stats["kv"]["entries_per_layer"].at("most"), 60) << model.model;
      }
      if (kv == &in_budget) {
        EXPECT_LE(stats["memory"].at("kv"), stats["kv"].at("budget_bytes")) << model.model;
      }
    }
  }
  if (n_models == 0) GTEST_SKIP() << "the models are not here";
}

}  // namespace
}  // namespace kvrun::testing
