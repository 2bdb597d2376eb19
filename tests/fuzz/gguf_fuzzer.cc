// Reads arbitrary bytes as a model: keys, tensors, configuration, weights, one block of every tensor.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights.h"

namespace {

// What tokenizers and chat templates read, so that the typed access is reached too.
void ReadTokenizerKeys(const kvrun::GgufFile& file) {
  (void)file.Strings("tokenizer.ggml.tokens");
  (void)file.Floats("tokenizer.ggml.scores");
  (void)file.Ints("tokenizer.ggml.token_type");
  (void)file.String("tokenizer.ggml.model");
  (void)file.BoolOr("tokenizer.ggml.add_bos_token", false);
  (void)file.U32Or("tokenizer.ggml.bos_token_id", 0);
}

void DecodeFirstAndLastBlocks(const kvrun::GgufFile& file) {
  std::vector<float> block;
  std::vector<std::byte> bytes;
  for (const kvrun::GgufTensor& tensor : file.tensors()) {
    const kvrun::TensorTypeInfo& info = kvrun::GetTensorType(tensor.type);
    block.resize(info.block_elements);
    bytes.resize(info.block_bytes);
    for (const uint64_t at : {uint64_t{0}, tensor.size_bytes - info.block_bytes}) {
      if (file.Read(tensor, at, bytes).ok()) kvrun::DecodeTensor(tensor.type, bytes, block);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const auto file = kvrun::GgufFile::Parse(std::as_bytes(std::span(data, size_bytes)), "fuzz.gguf");
  if (!file.ok()) return 0;
  ReadTokenizerKeys(**file);
  DecodeFirstAndLastBlocks(**file);
  const auto config = kvrun::ReadModelConfig(**file);
  if (!config.ok()) return 0;
  (void)kvrun::MakeRopeTable(config->rope, 1024);
  (void)kvrun::FindModelWeights(**file, *config);
  return 0;
}
