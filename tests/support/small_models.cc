#include "tests/support/small_models.h"

#include <algorithm>

#include "tests/support/or_die.h"
#include "tests/support/reference_files.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {

std::vector<SmallModel> SmallModels() {
  std::vector<SmallModel> models = {{"SelfMade", ""}};
  for (const char* name : {"llama-gqa4-Q8_0", "llama-odd-Q4_1", "qwen2-bias-Q5_0", "qwen3-qknorm-Q4_K_M"}) {
    const auto path = SharedPath(std::string("reference/tiny/") + name + ".gguf");
    std::string identifier = name;
    std::replace(identifier.begin(), identifier.end(), '-', '_');
    if (path) models.push_back({identifier, *path});
  }
  if (const auto path = SharedPath("models/stories260K.gguf")) models.push_back({"stories260K", *path});
  return models;
}

LoadedModel LoadSmallModel(const SmallModel& model, const TemporaryFolder& folder, Device* device) {
  if (!model.path.empty()) return LoadModelOrDie(model.path, device);
  return LoadDeepModel(TinyModelOptions().n_layers, folder, device);
}

uint64_t KvBytesInUse(const LoadedModel& loaded) {
  uint64_t bytes = 0;
  for (const Device::MemoryPart& part : loaded.device->MemoryInUse()) {
    if (part.part == "kv") bytes += part.bytes;
  }
  return bytes;
}

std::string MethodTestName(const ::testing::TestParamInfo<KvMethod>& source) {
  std::string name(source.param.name);
  std::replace(name.begin(), name.end(), '*', 'S');
  std::erase(name, '-');
  return name;
}

LoadedModel LoadDeepModel(uint32_t n_layers, const TemporaryFolder& folder, Device* device) {
  TinyModelOptions options;
  options.n_layers = n_layers;
  options.n_vocab = 300;
  options.n_ctx_train = 1024;
  return LoadModelOrDie(WriteModel(folder, "tiny.gguf", TinyModel(options).Build()), device);
}

std::shared_ptr<OffloadedPassOptions> OffloadedOptionsOrDie(const LoadedModel& loaded,
                                                            const TemporaryFolder& folder,
                                                            const std::string& options, uint32_t n_ctx,
                                                            uint32_t n_sequences) {
  KvSettings settings;
  settings.storage.folder = folder.Path("kv");
  settings.storage.allow_tmpfs = true;
  RunOrDie(ParseKvOptions(options, &settings));
  return std::make_shared<OffloadedPassOptions>(
      OrDie(PrepareOffloadedPass(*loaded.model, settings, n_ctx, n_sequences)));
}

std::vector<int> SomeIds(size_t n, size_t seed, size_t n_vocab) {
  std::vector<int> ids;
  for (size_t i = 0; i < n; ++i)
    ids.push_back(static_cast<int>(3 + (i * i * 7 + seed * 31 + i) % (n_vocab - 3)));
  return ids;
}

std::vector<float> Feed(ForwardPass& pass, std::span<const int> ids, size_t begin, size_t end, size_t chunk,
                        uint32_t sequence) {
  std::vector<float> logits(pass.n_vocab());
  for (size_t at = begin; at < end; at += chunk) {
    ForwardStep rows;
    for (size_t i = at; i < std::min(at + chunk, end); ++i) {
      rows.Add(std::min(at + chunk, end) - at == 1 ? SpanKind::kDecode : SpanKind::kPrompt,
               {ids[i], static_cast<uint32_t>(i), sequence});
    }
    const uint32_t last = static_cast<uint32_t>(rows.size() - 1);
    const Status status = pass.Run(rows, std::span(&last, 1), logits);
    if (!status.ok()) ADD_FAILURE() << status.message();
  }
  return logits;
}

}  // namespace kvrun::testing
