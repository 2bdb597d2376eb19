// A self-made model in a temporary folder, for tests that run without any downloaded file.
#pragma once

#include <string>

#include "tests/support/gguf_builder.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {

inline std::string WriteModel(const TemporaryFolder& folder, const std::string& name, const Bytes& bytes) {
  return folder.Write(name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// Bytes as tokens and a few words, ChatML, a context of 512 tokens.
inline GgufBuilder TalkingModel(uint32_t n_layers = 2) {
  TinyModelOptions options;
  options.n_layers = n_layers;
  options.n_vocab = 300;
  options.n_ctx_train = 512;
  GgufBuilder model = TinyModel(options);
  model.Set("tokenizer.chat_template",
            "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
            "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
            "}}{% endif %}");
  return model;
}

}  // namespace kvrun::testing
