// Lets the tests of this program say "no more than the file justifies".
#include <gtest/gtest.h>

#include <memory>

#include "base/test_allocations.h"
#include "checkpoint/test_files.h"

namespace kun {
namespace {

TEST(AllocatedBytes, CountsWhatIsAllocated) {
  const std::size_t before = allocated_bytes;
  const auto memory = std::make_unique<std::byte[]>(1000);
  EXPECT_NE(memory, nullptr);
  EXPECT_GE(allocated_bytes - before, 1000U);
}

}  // namespace
}  // namespace kun
