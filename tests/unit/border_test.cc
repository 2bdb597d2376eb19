// What the C API says of exceptions, which never cross it.
#include "runtime/capi/border.h"

#include <gtest/gtest.h>
#include <kvrun/kvrun.h>
#include <system_error>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <string>

namespace kvrun {
namespace {

template <typename Exception>
std::string MessageOf(const Exception& exception, kvrun_status expected) {
  EXPECT_EQ(capi::Guard([&]() -> Status { throw exception; }), expected);
  return kvrun_last_error();
}

TEST(Border, ASystemWithoutThreadsIsExplained) {
  EXPECT_EQ(MessageOf(std::system_error(EAGAIN, std::generic_category()), KVRUN_OUT_OF_MEMORY),
            "this system allows no more threads: end other programs, or raise its limit (ulimit -u)");
  EXPECT_EQ(MessageOf(std::system_error(EPERM, std::generic_category()), KVRUN_IO_ERROR),
            "the system refused what kvrun needs: Operation not permitted");
}

TEST(Border, AFaultOfOursIsCalledOne) {
  EXPECT_EQ(MessageOf(std::runtime_error("index 7"), KVRUN_INTERNAL_ERROR),
            "a fault in kvrun, not in what was given to it: please report it (index 7)");
  EXPECT_EQ(MessageOf(7, KVRUN_INTERNAL_ERROR),
            "a fault in kvrun, not in what was given to it: please report it");
  EXPECT_EQ(MessageOf(std::bad_alloc(), KVRUN_OUT_OF_MEMORY),
            "out of memory: close other programs, or ask for a smaller context");
}

}  // namespace
}  // namespace kvrun
