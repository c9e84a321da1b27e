// What is special about models in GGUF files: tensor types, second scales, parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "checkpoint/checkpoint.h"
#include "checkpoint/test_files.h"

namespace kun {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::unique_ptr<Checkpoint> opened(const fs::path& path) {
  auto checkpoint = open_checkpoint(path);
  if (!checkpoint.has_value()) ADD_FAILURE() << checkpoint.error().message();
  return checkpoint.has_value() ? *std::move(checkpoint) : nullptr;
}

std::string error_of(const fs::path& path) {
  const auto checkpoint = open_checkpoint(path);
  return checkpoint.has_value() ? "no error" : checkpoint.error().message();
}

// A llama of one layer, of which each field can be changed.
struct SmallLlama {
  std::string architecture = "llama";
  std::uint32_t embedding_type = 0;
  std::uint64_t embedding_columns = 64;
  std::uint64_t embedding_bytes = 4 * 32 * 4;
  std::string extra_tensor = "blk.0.attn_norm.weight";
  std::vector<std::uint64_t> extra_shape{32};
  float extra_value = 0;
  std::uint32_t experts = 0;
  std::uint32_t rotated = 8;

  std::string bytes() const {
    GgufBytes out;
    out.header(2, 9).string_value("general.architecture", architecture);
    const std::string a = architecture + ".";
    out.value<std::uint32_t>(a + "context_length", 4, 64);
    out.value<std::uint32_t>(a + "embedding_length", 4, 32);
    out.value<std::uint32_t>(a + "block_count", 4, 1);
    out.value<std::uint32_t>(a + "feed_forward_length", 4, 48);
    out.value<std::uint32_t>(a + "attention.head_count", 4, 4);
    out.value<float>(a + "attention.layer_norm_rms_epsilon", 6, 1e-5F);
    out.value<std::uint32_t>(a + "expert_count", 4, experts);
    out.value<std::uint32_t>(a + "rope.dimension_count", 4, rotated);
    out.tensor("token_embd.weight", {embedding_columns, 4}, embedding_type, 0);
    out.tensor(extra_tensor, extra_shape, 0, (embedding_bytes + 31) / 32 * 32).pad();
    out.zeros(static_cast<std::size_t>(embedding_bytes)).pad();
    for (std::uint64_t i = 0; i < extra_shape[0]; ++i) out.put(extra_value);
    return out.str();
  }
};

std::string small_llama_error(const SmallLlama& llama) {
  const TemporaryFolder folder;
  return error_of(folder.write("m.gguf", llama.bytes()));
}

TEST(GgufCheckpoint, RefusesWhatTheModelsCannotHonour) {
  SmallLlama llama;
  llama.embedding_bytes = 4 * 64 * 4;
  EXPECT_EQ(small_llama_error(llama), "no error");
  llama.experts = 8;
  EXPECT_THAT(small_llama_error(llama), HasSubstr("'llama.expert_count' announces experts"));
  llama.experts = 0;
  llama.rotated = 4;
  EXPECT_THAT(small_llama_error(llama), HasSubstr("'llama.rope.dimension_count' is 4 where heads"));
  llama.rotated = 8;
  llama.architecture = "gpt2";
  EXPECT_THAT(small_llama_error(llama), HasSubstr("architecture 'gpt2' are not supported"));
  llama.architecture = "llama";
  llama.extra_tensor = "model.embed_tokens.weight";
  EXPECT_THAT(small_llama_error(llama), HasSubstr("stand for the same weight"));
}

TEST(GgufCheckpoint, RefusesTensorTypesByNameAndOnlyWhenUsed) {
  const std::array<std::pair<std::uint32_t, const char*>, 3> types{
      {{26, "I32"}, {31, "Q4_0_4_4"}, {1234, "type 1234"}}};
  for (const auto& [type, name] : types) {
    SmallLlama llama;
    llama.embedding_type = type;
    llama.embedding_bytes = 4 * 64 * 4;
    const TemporaryFolder folder;
    const auto checkpoint = opened(folder.write("m.gguf", llama.bytes()));
    ASSERT_TRUE(checkpoint);
    EXPECT_THAT(checkpoint->matrix("model.embed_tokens.weight").error().message(),
                HasSubstr(std::string("is stored as ") + name + ", which is not supported"));
    EXPECT_TRUE(checkpoint->vector("model.layers.0.input_layernorm.weight").has_value());
  }
}

// The codebook types: known by name and size, so that a file with them opens and can be inspected.
TEST(GgufCheckpoint, RefusesEveryLowBitTypeByName) {
  struct Type {
    std::uint32_t id;
    const char* name;
    std::uint64_t block_bytes;  // of 256 weights
  };
  const Type types[] = {{16, "IQ2_XXS", 66}, {17, "IQ2_XS", 74}, {18, "IQ3_XXS", 98},
                        {19, "IQ1_S", 50},   {21, "IQ3_S", 110}, {22, "IQ2_S", 82},
                        {29, "IQ1_M", 56},   {34, "TQ1_0", 54},  {35, "TQ2_0", 66},
                        {41, "Q1_0", 36},    {42, "Q2_0", 72}};
  for (const Type& type : types) {
    SmallLlama llama;
    llama.embedding_type = type.id;
    llama.embedding_columns = 256;
    llama.embedding_bytes = 4 * type.block_bytes;
    const TemporaryFolder folder;
    const auto checkpoint = opened(folder.write("m.gguf", llama.bytes()));
    ASSERT_TRUE(checkpoint);
    EXPECT_EQ(checkpoint->tensors().front().format, type.name);
    EXPECT_EQ(checkpoint->tensors().front().bytes, llama.embedding_bytes);
    EXPECT_THAT(checkpoint->matrix("model.embed_tokens.weight").error().message(),
                HasSubstr(std::string("is stored as ") + type.name + ", which is not supported"));
  }
}

TEST(GgufCheckpoint, ReadsTheSecondScaleOfNvfp4) {
  SmallLlama llama;
  llama.embedding_type = 40;
  llama.embedding_bytes = 4 * 36;
  llama.extra_tensor = "token_embd.scale";
  llama.extra_shape = {1};
  llama.extra_value = 0.25F;
  const TemporaryFolder folder;
  const auto checkpoint = opened(folder.write("m.gguf", llama.bytes()));
  ASSERT_TRUE(checkpoint);
  const auto matrix = checkpoint->matrix("model.embed_tokens.weight");
  ASSERT_TRUE(matrix.has_value()) << matrix.error().message();
  EXPECT_EQ(matrix->format, WeightFormat::kNVFP4);
  EXPECT_EQ(matrix->tensor_scale, 0.25F);

  llama.extra_value = std::numeric_limits<float>::infinity();
  const auto infinite = opened(folder.write("n.gguf", llama.bytes()));
  ASSERT_TRUE(infinite);
  EXPECT_THAT(infinite->matrix("model.embed_tokens.weight").error().message(),
              HasSubstr("'model.embed_tokens.scale' has the scale inf at 0"));
  llama.extra_shape = {2};
  const auto two = opened(folder.write("o.gguf", llama.bytes()));
  ASSERT_TRUE(two);
  EXPECT_THAT(two->matrix("model.embed_tokens.weight").error().message(),
              HasSubstr("'model.embed_tokens.scale' must hold 1 F32, one for each matrix"));
}

// Three experts of 2 x 64 in NVFP4, and the number of each in "ffn_up_exps.scale".
std::string nvfp4_experts(const std::vector<float>& scales) {
  constexpr std::size_t kBytes = 3 * 2 * 36;
  GgufBytes out;
  out.header(2, 14).string_value("general.architecture", "deepseek2");
  for (const char* key :
       {"context_length", "embedding_length", "block_count", "feed_forward_length",
        "attention.head_count", "attention.kv_lora_rank", "attention.value_length_mla",
        "expert_count", "expert_used_count", "expert_feed_forward_length"}) {
    out.value<std::uint32_t>(std::string("deepseek2.") + key, 4, 3);
  }
  out.value<std::uint32_t>("deepseek2.attention.key_length_mla", 4, 6);
  out.value<std::uint32_t>("deepseek2.rope.dimension_count", 4, 4);
  out.value<float>("deepseek2.attention.layer_norm_rms_epsilon", 6, 1e-5F);
  out.tensor("blk.0.ffn_up_exps.weight", {64, 2, 3}, 40, 0);
  out.tensor("blk.0.ffn_up_exps.scale", {scales.size()}, 0, (kBytes + 31) / 32 * 32).pad();
  out.zeros(kBytes).pad();
  for (const float scale : scales) out.put(scale);
  return out.str();
}

TEST(GgufCheckpoint, ReadsTheSecondScaleOfEachExpert) {
  const TemporaryFolder folder;
  const auto checkpoint = opened(folder.write("m.gguf", nvfp4_experts({0.5F, -2.0F, 8.0F})));
  ASSERT_TRUE(checkpoint);
  const auto scale = [&](int expert) {
    const auto matrix = checkpoint->matrix("model.layers.0.mlp.experts." + std::to_string(expert) +
                                           ".up_proj.weight");
    return matrix ? matrix->tensor_scale : 0.0F;
  };
  EXPECT_EQ(scale(0), 0.5F);
  EXPECT_EQ(scale(1), -2.0F);
  EXPECT_EQ(scale(2), 8.0F);
  const auto wrong = opened(folder.write("n.gguf", nvfp4_experts({1.0F, 2.0F})));
  ASSERT_TRUE(wrong);
  EXPECT_THAT(wrong->matrix("model.layers.0.mlp.experts.1.up_proj.weight").error().message(),
              HasSubstr("'model.layers.0.mlp.experts.up_proj.scale' must hold 3 F32"));
}

// Part `number` of a model of two parts; the first has the metadata of a SmallLlama.
std::string split_part(std::uint16_t number, std::uint16_t count, std::int32_t tensor_count) {
  GgufBytes out;
  const bool first = number == 0;
  out.header(1, first ? 10 : 2).value("split.no", 2, number).value("split.count", 2, count);
  if (first) {
    out.value("split.tensors.count", 5, tensor_count);
    out.string_value("general.architecture", "llama");
    for (const char* key : {"context_length", "embedding_length", "block_count",
                            "feed_forward_length", "attention.head_count"}) {
      out.value<std::uint32_t>(std::string("llama.") + key, 4, 32);
    }
    out.value<float>("llama.attention.layer_norm_rms_epsilon", 6, 1e-5F);
  }
  out.tensor(first ? "output_norm.weight" : "output.weight", {32}, 0, 0).pad().zeros(128);
  return out.str();
}

TEST(GgufCheckpoint, OpensAllPartsOfASplitModel) {
  const TemporaryFolder folder;
  const fs::path first = folder.write("m-00001-of-00002.gguf", split_part(0, 2, 2));
  EXPECT_THAT(error_of(first), HasSubstr("cannot open"));
  const fs::path second = folder.write("m-00002-of-00002.gguf", split_part(1, 2, 2));
  for (const fs::path& path : {first, folder.path()}) {
    const auto checkpoint = opened(path);
    ASSERT_TRUE(checkpoint);
    EXPECT_TRUE(checkpoint->has("model.norm.weight"));
    EXPECT_TRUE(checkpoint->has("lm_head.weight"));
    EXPECT_EQ(checkpoint->tensors().size(), 2U);
  }
  EXPECT_THAT(error_of(second), HasSubstr("give the first, whose name ends with -00001-of-00002"));
  folder.write("m-00002-of-00002.gguf", split_part(0, 2, 2));
  EXPECT_THAT(error_of(first), HasSubstr("is not part 2 of 2"));
  folder.write("m-00002-of-00002.gguf", split_part(1, 2, 2));
  folder.write("m-00001-of-00002.gguf", split_part(0, 2, 3));
  EXPECT_THAT(error_of(first), HasSubstr("hold 2 tensors, 3 are announced"));
}

}  // namespace
}  // namespace kun
