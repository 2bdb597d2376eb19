#include "apps/kvrun/shaped_model.h"

namespace kvrun::cli {

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const char* const* name = kvrun_shape_names(); *name != nullptr; ++name) names.emplace_back(*name);
  return names;
}

Model MakeModel(const std::string& shape, uint32_t n_layers) {
  kvrun_model* model = nullptr;
  Check(kvrun_model_make(shape.c_str(), n_layers, &model));
  return Model(model);
}

}  // namespace kvrun::cli
