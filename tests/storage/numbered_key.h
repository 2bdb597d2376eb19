// Keys for tests: another for each number.
#pragma once

#include <cstdint>

#include "platform/io/secret_key.h"
#include "tests/storage/storage_fixture.h"

namespace kvrun::testing {

inline SecretKey KeyNumber(uint64_t number) {
  SecretKey key;
  FillPattern(key.bytes(), 0, number);
  return key;
}

}  // namespace kvrun::testing
