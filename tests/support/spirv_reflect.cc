#include "tests/support/spirv_reflect.h"

#include <spirv_cross_c.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>

namespace kvrun::testing {
namespace {

struct DestroyContext {
  void operator()(spvc_context context) const { spvc_context_destroy(context); }
};
using Context = std::unique_ptr<spvc_context_s, DestroyContext>;

class Reflector {
 public:
  Result<ReflectedShader> Reflect(std::span<const uint32_t> words) {
    KVRUN_RETURN_IF_ERROR(Parse(words));
    ReflectedShader shader;
    KVRUN_RETURN_IF_ERROR(
        AddBindings(SPVC_RESOURCE_TYPE_STORAGE_BUFFER, BindingKind::kStorageBuffer, shader));
    KVRUN_RETURN_IF_ERROR(
        AddBindings(SPVC_RESOURCE_TYPE_UNIFORM_BUFFER, BindingKind::kUniformBuffer, shader));
    std::sort(shader.bindings.begin(), shader.bindings.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.set, a.binding) < std::tuple(b.set, b.binding);
    });

    KVRUN_ASSIGN_OR_RETURN(const auto blocks, Resources(SPVC_RESOURCE_TYPE_PUSH_CONSTANT));
    for (const spvc_reflected_resource& block : blocks) {
      KVRUN_RETURN_IF_ERROR(AddMembers(block.base_type_id, 0, shader.push_constants));
    }
    return shader;
  }

 private:
  Status Check(spvc_result result) const {
    if (result == SPVC_SUCCESS) return Status::Ok();
    return {StatusCode::kCorrupt,
            std::string("SPIRV-Cross: ") + spvc_context_get_last_error_string(context_.get())};
  }

  Status Parse(std::span<const uint32_t> words) {
    spvc_context context = nullptr;
    if (spvc_context_create(&context) != SPVC_SUCCESS) {
      return {StatusCode::kInternal, "SPIRV-Cross: no context"};
    }
    context_.reset(context);
    spvc_parsed_ir ir = nullptr;
    KVRUN_RETURN_IF_ERROR(Check(spvc_context_parse_spirv(context, words.data(), words.size(), &ir)));
    KVRUN_RETURN_IF_ERROR(Check(spvc_context_create_compiler(context, SPVC_BACKEND_NONE, ir,
                                                             SPVC_CAPTURE_MODE_TAKE_OWNERSHIP, &compiler_)));
    return Check(spvc_compiler_create_shader_resources(compiler_, &resources_));
  }

  Result<std::span<const spvc_reflected_resource>> Resources(spvc_resource_type type) const {
    const spvc_reflected_resource* list = nullptr;
    size_t count = 0;
    KVRUN_RETURN_IF_ERROR(Check(spvc_resources_get_resource_list_for_type(resources_, type, &list, &count)));
    return std::span(list, count);
  }

  Status AddBindings(spvc_resource_type type, BindingKind kind, ReflectedShader& shader) const {
    KVRUN_ASSIGN_OR_RETURN(const auto buffers, Resources(type));
    for (const spvc_reflected_resource& buffer : buffers) {
      ReflectedBinding binding;
      binding.kind = kind;
      binding.set = spvc_compiler_get_decoration(compiler_, buffer.id, SpvDecorationDescriptorSet);
      binding.binding = spvc_compiler_get_decoration(compiler_, buffer.id, SpvDecorationBinding);
      if (kind == BindingKind::kUniformBuffer) {
        KVRUN_RETURN_IF_ERROR(AddMembers(buffer.base_type_id, 0, binding.members));
      }
      shader.bindings.push_back(std::move(binding));
    }
    return Status::Ok();
  }

  // Members of a struct that begins at `base`.
  Status AddMembers(spvc_type_id struct_id, uint32_t base, std::vector<ReflectedMember>& members) const {
    const spvc_type type = spvc_compiler_get_type_handle(compiler_, struct_id);
    for (unsigned i = 0; i < spvc_type_get_num_member_types(type); ++i) {
      unsigned offset = 0;
      KVRUN_RETURN_IF_ERROR(Check(spvc_compiler_type_struct_member_offset(compiler_, type, i, &offset)));
      const spvc_type member = spvc_compiler_get_type_handle(compiler_, spvc_type_get_member_type(type, i));
      const unsigned dimensions = spvc_type_get_num_array_dimensions(member);
      if (dimensions == 0) {
        KVRUN_RETURN_IF_ERROR(AddElement(member, base + offset, members));
        continue;
      }
      if (dimensions > 1) return {StatusCode::kUnsupported, "an array of arrays"};
      unsigned stride = 0;
      KVRUN_RETURN_IF_ERROR(
          Check(spvc_compiler_type_struct_member_array_stride(compiler_, type, i, &stride)));
      const unsigned length = spvc_type_get_array_dimension(member, 0);
      for (unsigned element = 0; element < length; ++element) {
        KVRUN_RETURN_IF_ERROR(AddElement(member, base + offset + element * stride, members));
      }
    }
    return Status::Ok();
  }

  // A member, or one element of it where it is an array.
  Status AddElement(spvc_type type, uint32_t offset, std::vector<ReflectedMember>& members) const {
    if (spvc_type_get_basetype(type) == SPVC_BASETYPE_STRUCT) {
      return AddMembers(spvc_type_get_base_type_id(type), offset, members);
    }
    const unsigned components = spvc_type_get_vector_size(type) * spvc_type_get_columns(type);
    members.push_back({offset, components * spvc_type_get_bit_width(type) / 8});
    return Status::Ok();
  }

  Context context_;  // owns the two below
  spvc_compiler compiler_ = nullptr;
  spvc_resources resources_ = nullptr;
};

}  // namespace

Result<ReflectedShader> ReflectShader(std::span<const uint32_t> words) { return Reflector().Reflect(words); }

}  // namespace kvrun::testing
