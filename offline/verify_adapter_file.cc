#include "offline/verify_adapter.h"
#include "runtime/model/fingerprint.h"
#include "runtime/model/gguf.h"
#include "runtime/model/gguf_split.h"
#include "runtime/model/model_config.h"

namespace kvrun::offline {

Result<std::vector<AdapterCheck>> VerifyAdapterFile(const std::string& adapter_path,
                                                    const std::string& model_path) {
  KVRUN_ASSIGN_OR_RETURN(const Adapter adapter, ReadWholeAdapter(adapter_path));
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> model, OpenModelFile(model_path));
  KVRUN_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*model));
  KVRUN_ASSIGN_OR_RETURN(const std::string fingerprint, ModelFingerprint(*model, config));
  return VerifyAdapter(adapter, {.fingerprint = fingerprint,
                                 .n_layers = config.n_kv_layers(),
                                 .n_kv_heads = config.n_kv_heads,
                                 .key_dim = config.kv_dim()});
}

}  // namespace kvrun::offline
