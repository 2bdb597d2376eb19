// Which methods a property of all of them does not hold for, and why.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "runtime/kv/plan/kv_method.h"

namespace kvrun::testing {

struct MethodExclusion {
  std::string_view property;
  std::string_view method;
  std::string_view reason;
};

inline bool IsExcluded(std::span<const MethodExclusion> list, std::string_view property,
                       std::string_view method) {
  return std::any_of(list.begin(), list.end(), [&](const MethodExclusion& one) {
    return one.property == property && one.method == method;
  });
}

// An exclusion that names nothing excludes nothing.
inline void ExpectRowsOfTheTable(std::span<const MethodExclusion> list) {
  for (const MethodExclusion& one : list) {
    EXPECT_TRUE(FindKvMethod(one.method).ok()) << one.method;
    EXPECT_FALSE(one.reason.empty());
  }
}

}  // namespace kvrun::testing
