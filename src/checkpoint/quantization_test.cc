// What quantization_config may say: which settings are honoured, and which are refused by name.
#include "checkpoint/quantization.h"

#include <gmock/gmock.h>

#include "checkpoint/test_quantized.h"

namespace kun {
namespace {

using ::testing::HasSubstr;

TEST(Quantization, RefusesSettingsByName) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"quant_method":"gguf"})", "quantized with 'gguf', which is not supported"},
      {R"({"quant_method":7})", "the key 'quantization_config.quant_method' must be a string"},
      {R"({"quant_method":"gptq","bits":3})", "is 3, only 4 and 8 are supported"},
      {R"({"quant_method":"gptq","bits":4,"group_size":0})",
       "group_size' is 0, it must be positive"},
      {R"({"quant_method":"gptq","bits":4,"group_size":-5})", "group_size' is -5"},
      {R"({"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"})",
       "checkpoint_format' is 'marlin', which is not supported; supported are: gptq, gptq_v2"},
      {R"({"quant_method":"gptq","bits":4,"format":"marlin"})",
       "format' is 'marlin', which is not supported; supported are: gptq, gptq_v2"},
      {R"({"quant_method":"gptq","bits":4,"dynamic":{"+:lm_head":{"bits":8}}})",
       "dynamic' overrides the settings of single layers by '+:lm_head'"},
      {R"({"quant_method":"gptq","bits":4,"dynamic":{"-:a":{},"+:.*\\.18\\..*":{"bits":8}}})",
       "dynamic' overrides the settings of single layers by '+:.*"},
      {R"({"quant_method":"gptq","bits":4,"dynamic":{".*\\.up_proj":{"bits":8}}})",
       "dynamic' overrides the settings of single layers by '.*"},
      {R"({"quant_method":"awq","bits":4,"version":"gemv"})", "version' is 'gemv'"},
      {R"({"quant_method":"awq","bits":8})", "AWQ has only 4"},
      {R"({"quant_method":"fp8","fmt":"e5m2"})", "fmt' is 'e5m2'"},
      {R"({"quant_method":"fp8","weight_block_size":[128]})", "must be a pair of sizes"},
      {R"({"quant_method":"fp8","weight_block_size":[0,128]})",
       "weight_block_size' has an element 0"},
      {compressed("marlin-24", R"({"num_bits":4})"), "format' is 'marlin-24'"},
      {compressed("pack-quantized", R"({"num_bits":5})"), "num_bits' is 5"},
      {compressed("pack-quantized", R"({"num_bits":4,"strategy":"token"})"),
       "strategy' is 'token'"},
      {compressed("pack-quantized", R"({"num_bits":4,"actorder":"odd"})"), "actorder' is 'odd'"},
      {R"({"quant_method":"compressed-tensors","format":"pack-quantized"})",
       "config_groups' names no quantized weights"},
      {R"({"quant_method":"compressed-tensors","format":"dense",)"
       R"("sparsity_config":{"format":"sparse-24"}})",
       "sparsity_config.format' is 'sparse-24'"},
  };
  for (const auto& [quantization, error] : cases) {
    EXPECT_THAT(read(quantization, gptq_parts()).error, HasSubstr(error)) << quantization;
  }
}

// GPTQModel says so about gates and heads; what it left alone is stored as it was.
TEST(Quantization, TakesRulesThatLeaveLayersAlone) {
  const std::string rules = R"({"quant_method":"gptq","bits":4,"group_size":8,"sym":false,)"
                            R"("dynamic":{"-:.*\\.gate$":{},"-:lm_head":{}}})";
  Parts parts = gptq_parts();
  EXPECT_EQ(read(rules, parts).rows, read(kGptq, parts).rows);
  parts = {{"x.weight", part("F32", {1, 2}, std::vector<float>{1.0F, 2.0F})}};
  EXPECT_EQ(read(rules, parts).rows, (Rows{{1.0F, 2.0F}}));
}

TEST(Quantization, ReadsGptqsFormatByBothOfItsKeys) {
  const auto zero_of_row_0 = [](const std::string& more) {
    return read(R"({"quant_method":"gptq","bits":4,"group_size":8)" + more + "}", gptq_parts())
        .rows[0][0];
  };
  EXPECT_EQ(zero_of_row_0(""), 0.0F);
  EXPECT_EQ(zero_of_row_0(R"(,"format":"gptq")"), 0.0F);
  EXPECT_EQ(zero_of_row_0(R"(,"format":"gptq_v2")"), -15.0F);
  EXPECT_EQ(zero_of_row_0(R"(,"checkpoint_format":"gptq_v2")"), -15.0F);
  EXPECT_EQ(zero_of_row_0(R"(,"checkpoint_format":"gptq","format":"gptq_v2")"), 0.0F);
}

TEST(Quantization, ReadsTheFileThatAutoGptqWrites) {
  const TemporaryFolder folder;
  folder.write("config.json", "{}");
  folder.write("quantize_config.json", R"({"bits":4,"group_size":8,"desc_act":false,"sym":false})");
  folder.write("model.safetensors", file_of(gptq_parts()));
  const auto checkpoint = open_checkpoint(folder.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  const auto view = (*checkpoint)->matrix("x.weight", 8, 16);
  ASSERT_TRUE(view.has_value()) << view.error().message();
  EXPECT_EQ(values_of(*view)[3][4], gptq_value(3, 4, 0));
}

}  // namespace
}  // namespace kun
