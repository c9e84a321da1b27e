// The names of --kv-cache-dtype.
#include "runtime/cache_dtype.h"

#include <gmock/gmock.h>

namespace kun {
namespace {

using testing::HasSubstr;

TEST(CacheDtype, KnowsTheNamesOfVllm) {
  EXPECT_EQ(*parse_cache_dtype("auto"), std::nullopt);
  EXPECT_EQ(*parse_cache_dtype("bfloat16"), DType::kBF16);
  EXPECT_EQ(*parse_cache_dtype("float32"), DType::kF32);
  EXPECT_EQ(*parse_cache_dtype("int8"), DType::kI8);
}

TEST(CacheDtype, NamesInt8WhereFp8IsAskedFor) {
  for (const char* fp8 : {"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"}) {
    const auto parsed = parse_cache_dtype(fp8);
    ASSERT_FALSE(parsed.has_value());
    EXPECT_THAT(parsed.error().message(), HasSubstr("use int8"));
    EXPECT_THAT(parsed.error().message(), HasSubstr(fp8));
  }
  EXPECT_THAT(parse_cache_dtype("q4").error().message(), HasSubstr("not 'q4'"));
}

}  // namespace
}  // namespace kun
