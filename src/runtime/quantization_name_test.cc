// The names of --quantization against files of every kind.
#include "runtime/quantization_name.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <string>

namespace kun {
namespace {

using testing::HasSubstr;

const std::map<std::string, std::string> kFiles{
    {"", "llama-mha"},         {"gguf", "llama-mha/model.gguf"},        {"gptq", "llama-gptq-int4"},
    {"awq", "llama-awq-gemm"}, {"compressed-tensors", "llama-ct-int8"}, {"fp8", "deepseek-v3-fp8"},
};

std::unique_ptr<Checkpoint> checkpoint_of(const std::string& file) {
  auto opened = open_checkpoint(std::filesystem::path(KUN_TEST_DATA) / "tiny-models" / file);
  EXPECT_TRUE(opened.has_value()) << opened.error().message();
  return opened.has_value() ? *std::move(opened) : nullptr;
}

// What becomes of files of each kind; a kind that is not there is refused.
using Targets = std::map<std::string, WeightTarget>;

void expect_targets(std::string_view name, const Targets& targets) {
  for (const auto& [kind, file] : kFiles) {
    const auto checkpoint = checkpoint_of(file);
    ASSERT_TRUE(checkpoint);
    EXPECT_EQ(checkpoint->quantization(), kind);
    const auto target = target_of_quantization(name, *checkpoint);
    const auto wanted = targets.find(kind);
    ASSERT_EQ(target.has_value(), wanted != targets.end()) << name << " for " << file;
    if (target.has_value()) {
      EXPECT_EQ(*target, wanted->second) << name << " for " << file;
      continue;
    }
    EXPECT_EQ(target.error().code(), StatusCode::kInvalidArgument);
    const std::string message(target.error().message());
    EXPECT_THAT(message, HasSubstr("--quantization " + std::string(name)));
    EXPECT_THAT(message, HasSubstr(file));
    EXPECT_THAT(message, HasSubstr(kind.empty() ? "not quantized" : "stored as " + kind));
  }
}

Targets all(WeightTarget target) {
  Targets out;
  for (const auto& [kind, file] : kFiles) out[kind] = target;
  return out;
}

TEST(QuantizationName, OfAFormatIsWhatTheFilesSay) {
  for (const char* name : {"awq", "awq_marlin"}) {
    expect_targets(name, {{"awq", WeightTarget::kAuto}});
  }
  for (const char* name : {"gptq", "gptq_marlin"}) {
    expect_targets(name, {{"gptq", WeightTarget::kAuto}});
  }
  expect_targets("moe_wna16", {{"gptq", WeightTarget::kAuto}, {"awq", WeightTarget::kAuto}});
  expect_targets("compressed-tensors", {{"compressed-tensors", WeightTarget::kAuto}});
  expect_targets("gguf", {{"gguf", WeightTarget::kAuto}});
  expect_targets("deepseek_v4_fp8", {{"fp8", WeightTarget::kAuto}});
}

TEST(QuantizationName, OfAConversionIsForAllFiles) {
  for (const char* name : {"int8", "experts_int8"}) {
    expect_targets(name, all(WeightTarget::kInt8));
  }
  for (const char* name : {"int4", "bitsandbytes"}) {
    expect_targets(name, all(WeightTarget::kInt4));
  }
}

TEST(QuantizationName, Fp8IsTheFormatOrAConversion) {
  Targets targets = all(WeightTarget::kInt8);
  targets["fp8"] = WeightTarget::kAuto;
  expect_targets("fp8", targets);
}

TEST(QuantizationName, RefusesOthersWithTheListOfThose) {
  for (const char* name : {"", "AWQ", "modelopt", "auto"}) {
    const Status status = check_quantization_name(name);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const std::string_view known : quantization_names()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(known)));
      EXPECT_TRUE(check_quantization_name(known).ok());
    }
  }
}

}  // namespace
}  // namespace kun
