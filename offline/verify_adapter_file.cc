#include "offline/verify_adapter.h"
#include "runtime/model/fingerprint.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace kvrun::offline {

Result<std::vector<AdapterCheck>> VerifyAdapterFile(const std::string& adapter_path,
                                                    const std::string& model_path) {
  KVRUN_ASSIGN_OR_RETURN(const Adapter adapter, ReadWholeAdapter(adapter_path));
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> model, GgufFile::Open(model_path));
  KVRUN_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*model));
  return VerifyAdapter(adapter, {.fingerprint = ModelFingerprint(*model, config),
                                 .n_layers = config.n_layers,
                                 .n_kv_heads = config.n_kv_heads,
                                 .key_dim = config.kv_dim()});
}

}  // namespace kvrun::offline
