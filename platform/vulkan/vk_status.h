// The one translator from VkResult to Status.
#pragma once

#include <volk.h>

#include <string_view>

#include "platform/base/status.h"

namespace kvrun {

// "VK_ERROR_DEVICE_LOST"; an unknown value reads "VkResult -1234".
std::string VkResultName(VkResult result);

// `what` reads like "cannot create the pipeline matmul_q4_1_f32"; the reason and what to do are added.
// VK_SUCCESS and the other non-negative results are ok.
Status StatusFromVk(VkResult result, std::string_view what);

}  // namespace kvrun

// Returns from the calling function if `expression`, a VkResult, is an error.
#define KVRUN_RETURN_IF_VK_ERROR(expression, what)                              \
  do {                                                                          \
    if (const VkResult kvrun_vk_result_ = (expression); kvrun_vk_result_ < 0) { \
      return ::kvrun::StatusFromVk(kvrun_vk_result_, what);                     \
    }                                                                           \
  } while (false)
