// What the parts of the toy library share.
#pragma once

#include <kvrun/kvrun.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

struct kvrun_model {
  std::string path;
  bool Is(std::string_view word) const { return path.find(word) != std::string::npos; }
};

struct kvrun_engine {
  const kvrun_model* model;
  std::string device;
  bool profile;
  bool exact_activations;
  uint32_t n_threads;
  std::string instruction_set;
  bool remeasure;
};

namespace kvrun::fake {

kvrun_status Fail(kvrun_status status, const std::string& message);
kvrun_status HandOut(const std::string& text, char** out);

inline constexpr int32_t kBos = 256;
inline constexpr int32_t kStart = 257;
inline constexpr int32_t kEnd = 258;  // the end-of-generation token
inline constexpr uint32_t kVocabSize = 259;
std::string TextOf(int32_t token);

// An answer of a session's sequence 0, a token at a time.
class ToyAnswer {
 public:
  virtual ~ToyAnswer() = default;
  // False: it has ended.
  virtual bool Step() = 0;
  virtual kvrun_generate_result result() const = 0;
};
// All that it is given outlives it.
std::unique_ptr<ToyAnswer> BeginAnswer(kvrun_session* session, const kvrun_generate_options* options,
                                       kvrun_token_fn token, void* user);

using KvOptions = std::map<std::string, std::string>;
KvOptions ReadKvOptions(const kvrun_session_options& options);
// "full" unless said.
std::string MethodOf(const KvOptions& options);
// The options as they came, in alphabetical order.
std::string PlanLine(const KvOptions& options, uint32_t n_sequences, uint32_t n_ctx);
// The statistics' object "kv".
nlohmann::json KvStatistics(const KvOptions& options, const std::string& line, bool with_layers);

}  // namespace kvrun::fake
