// The same tiny models in both kinds of files must give the same configuration and the same
// weights.
#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/test_files.h"

namespace kun {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kTinyModels = KUN_TEST_DATA "/tiny-models";

std::unique_ptr<Checkpoint> opened(const fs::path& path) {
  auto checkpoint = open_checkpoint(path);
  if (!checkpoint.has_value()) ADD_FAILURE() << checkpoint.error().message();
  return checkpoint.has_value() ? *std::move(checkpoint) : nullptr;
}

std::string error_of(const fs::path& path) {
  const auto checkpoint = open_checkpoint(path);
  return checkpoint.has_value() ? "no error" : checkpoint.error().message();
}

int int_of(const Config& config, std::string_view key) {
  ConfigReader in(config);
  int value = -1;
  in.read(key, value);
  EXPECT_TRUE(in.status().ok()) << in.status().message();
  return value;
}

float float_of(const Config& config, std::string_view key, float fallback) {
  ConfigReader in(config);
  float value = fallback;
  in.read_or(key, value, fallback);
  EXPECT_TRUE(in.status().ok()) << in.status().message();
  return value;
}

std::vector<float> floats_of(const WeightView& view) {
  std::vector<float> out(static_cast<std::size_t>(view.rows * view.cols));
  for (std::int64_t row = 0; row < view.rows; ++row) {
    dequantize_row(view, row, out.data() + row * view.cols);
  }
  return out;
}

// Undoes what the converter does to q and k of llama models: within a head, row pair i, half h
// stands at 2 i + h instead of h d / 2 + i.
std::vector<float> in_half_layout(const std::vector<float>& rows, std::int64_t cols, int head_dim) {
  std::vector<float> out(rows.size());
  const auto row_count = static_cast<std::int64_t>(rows.size()) / cols;
  for (std::int64_t row = 0; row < row_count; ++row) {
    const std::int64_t in_head = row % head_dim;
    const std::int64_t to = row - in_head + in_head % 2 * (head_dim / 2) + in_head / 2;
    std::copy_n(rows.begin() + row * cols, cols, out.begin() + to * cols);
  }
  return out;
}

// What parsing and translating the metadata says.
std::string translation_error(const std::string& bytes) {
  const HeapBytes heap(bytes);
  const auto file = GgufFile::parse(heap.span(), "x.gguf");
  if (!file.has_value()) return file.error().message();
  GgufTensorMap tensors;
  for (const GgufTensor& tensor : file->tensors()) {
    tensors.emplace(hugging_face_name(tensor.name), &tensor);
  }
  const auto config = config_of_gguf(*file, tensors);
  const auto generation = generation_config_of_gguf(*file);
  if (!config.has_value()) return config.error().message();
  if (!generation.has_value()) return generation.error().message();
  const auto defaults = read_generation_defaults(*config, &*generation);
  return defaults.has_value() ? "no error" : defaults.error().message();
}

class TinyModel : public testing::TestWithParam<const char*> {
 protected:
  fs::path folder() const { return kTinyModels / GetParam(); }
};

TEST_P(TinyModel, HasTheSameWeightsInBothKindsOfFiles) {
  const auto hf = opened(folder());
  const auto gguf = opened(folder() / "model.gguf");
  ASSERT_TRUE(hf && gguf);
  EXPECT_EQ(hf->kind(), CheckpointKind::kHuggingFace);
  EXPECT_EQ(gguf->kind(), CheckpointKind::kGguf);
  EXPECT_NE(gguf->gguf(), nullptr);
  const int head_dim = int_of(gguf->config(), "head_dim");
  int matrices = 0;
  int vectors = 0;
  for (const StoredTensor& tensor : hf->tensors()) {
    ASSERT_TRUE(gguf->has(tensor.name)) << tensor.name;
    if (tensor.shape.size() == 1) {
      const auto a = hf->vector(tensor.name, tensor.shape[0]);
      const auto b = gguf->vector(tensor.name, tensor.shape[0]);
      ASSERT_TRUE(a.has_value() && b.has_value()) << tensor.name;
      EXPECT_EQ(*a, *b) << tensor.name;
      ++vectors;
      continue;
    }
    const auto a = hf->matrix(tensor.name, tensor.shape[0], tensor.shape[1]);
    const auto b = gguf->matrix(tensor.name, tensor.shape[0], tensor.shape[1]);
    ASSERT_TRUE(a.has_value() && b.has_value()) << tensor.name;
    const bool permuted =
        gguf->rope_interleaved() && (tensor.name.find("q_proj") != std::string::npos ||
                                     tensor.name.find("k_proj") != std::string::npos);
    std::vector<float> values = floats_of(*b);
    if (permuted) {
      EXPECT_NE(floats_of(*a), values) << tensor.name;
      values = in_half_layout(values, b->cols, head_dim);
    }
    EXPECT_EQ(floats_of(*a), values) << tensor.name;
    ++matrices;
  }
  EXPECT_GE(matrices, 15);
  EXPECT_GE(vectors, 5);
  const std::size_t extra = gguf->has("rope_freqs.weight") ? 1 : 0;
  EXPECT_EQ(gguf->tensors().size(), hf->tensors().size() + extra);
}

TEST_P(TinyModel, HasTheSameConfigurationInBothKindsOfFiles) {
  const auto hf = opened(folder());
  const auto gguf = opened(folder() / "model.gguf");
  ASSERT_TRUE(hf && gguf);
  EXPECT_EQ(hf->config().architecture(), gguf->config().architecture());
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "vocab_size", "intermediate_size", "max_position_embeddings"}) {
    EXPECT_EQ(int_of(hf->config(), key), int_of(gguf->config(), key)) << key;
  }
  for (const char* key : {"rms_norm_eps", "rope_theta"}) {
    EXPECT_EQ(float_of(hf->config(), key, -1), float_of(gguf->config(), key, -2)) << key;
  }
  EXPECT_NEAR(float_of(hf->config(), "rope_scaling.attention_factor", 1),
              float_of(gguf->config(), "rope_scaling.attention_factor", 1), 1e-6);
  ConfigReader in_hf(hf->config());
  ConfigReader in_gguf(gguf->config());
  bool tied_hf = false, tied_gguf = false;
  in_hf.read("tie_word_embeddings", tied_hf);
  in_gguf.read("tie_word_embeddings", tied_gguf);
  EXPECT_EQ(tied_hf, tied_gguf);
  EXPECT_EQ(tied_gguf, !gguf->has("lm_head.weight"));
  std::string type_hf, type_gguf;
  in_hf.read_or("rope_scaling.rope_type", type_hf, "default");
  in_gguf.read_or("rope_scaling.rope_type", type_gguf, "default");
  // GGUF has a tensor instead of the settings of this one type.
  if (gguf->has("rope_freqs.weight")) type_gguf = "llama3";
  EXPECT_EQ(type_hf, type_gguf);
  if (type_hf == "linear" || type_hf == "yarn") {
    EXPECT_EQ(float_of(hf->config(), "rope_scaling.factor", -1),
              float_of(gguf->config(), "rope_scaling.factor", -2));
  }
  EXPECT_FALSE(hf->rope_interleaved());
  EXPECT_EQ(gguf->rope_interleaved(), gguf->config().architecture() == "LlamaForCausalLM");
}

// A missing or strangely typed key is an error or a default, never a crash (CVE-2024-41130).
TEST_P(TinyModel, SurvivesTheLossOrChangeOfAnyMetadataKey) {
  const std::string bytes = read_file(folder() / "model.gguf");
  const auto whole = GgufFile::open(folder() / "model.gguf");
  ASSERT_TRUE(whole.has_value());
  int refused = 0;
  for (const GgufValue& value : whole->metadata()) {
    std::string renamed = bytes;
    const std::size_t at = bytes.find(std::string(value.key));
    renamed[at] = '~';
    const std::string lost = translation_error(renamed);
    EXPECT_TRUE(lost == "no error" || lost.find("metadata key '") != std::string::npos) << lost;
    refused += lost != "no error";
    for (std::uint32_t type = 0; type <= 13; ++type) {
      std::string retyped = bytes;
      std::memcpy(retyped.data() + at + value.key.size(), &type, sizeof(type));
      translation_error(retyped);
    }
  }
  EXPECT_GE(refused, 7);  // as many keys are required
}

INSTANTIATE_TEST_SUITE_P(All, TinyModel,
                         testing::Values("llama-mha", "llama-gqa-linear", "llama-gqa-llama3",
                                         "qwen2-bias-tied", "qwen3-yarn"),
                         [](const auto& named) {
                           std::string name = named.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Checkpoint, TellsTheRopeFactorsOfLlama3) {
  const auto gguf = opened(kTinyModels / "llama-gqa-llama3/model.gguf");
  ASSERT_TRUE(gguf);
  const auto factors = gguf->vector("rope_freqs.weight", 8);
  ASSERT_TRUE(factors.has_value());
  EXPECT_EQ(factors->front(), 1.0F);
  EXPECT_EQ(factors->back(), 8.0F);
}

TEST(Checkpoint, SaysWhatIsWrongWithATensor) {
  for (const fs::path& path : {kTinyModels / "llama-mha", kTinyModels / "llama-mha/model.gguf"}) {
    const auto checkpoint = opened(path);
    ASSERT_TRUE(checkpoint);
    EXPECT_THAT(checkpoint->matrix("model.nothing").error().message(),
                HasSubstr("tensor 'model.nothing' is missing"));
    EXPECT_THAT(checkpoint->matrix("model.norm.weight").error().message(),
                HasSubstr("tensor 'model.norm.weight' has 1 dimensions, 2 expected"));
    EXPECT_THAT(checkpoint->vector("lm_head.weight").error().message(),
                HasSubstr("has 2 dimensions, 1 expected"));
    EXPECT_THAT(checkpoint->matrix("lm_head.weight", 48, 33).error().message(),
                HasSubstr("has the shape [48, 32], the configuration asks for [48, 33]"));
    EXPECT_THAT(checkpoint->vector("model.norm.weight", 31).error().message(),
                HasSubstr("has the shape [32], the configuration asks for [31]"));
  }
}

TEST(GgufNames, TranslatesWhatHasACounterpartAndKeepsTheRest) {
  EXPECT_EQ(hugging_face_name("blk.12.attn_q.weight"), "model.layers.12.self_attn.q_proj.weight");
  EXPECT_EQ(hugging_face_name("blk.0.attn_k.bias"), "model.layers.0.self_attn.k_proj.bias");
  EXPECT_EQ(hugging_face_name("blk.0.ffn_down.scale"), "model.layers.0.mlp.down_proj.scale");
  EXPECT_EQ(hugging_face_name("output.weight"), "lm_head.weight");
  EXPECT_EQ(hugging_face_name("rope_freqs.weight"), "rope_freqs.weight");
  for (const char* strange :
       {"", ".", "blk.", "blk.0", "blk..attn_q.weight", "blk.00.attn_q.weight",
        "blk.-1.attn_q.weight", "blk.0.strange.weight", "blk.a.attn_q.x"}) {
    EXPECT_EQ(hugging_face_name(strange), strange);
  }
}

TEST(GgufNames, TranslatesExpertsLatentAttentionAndDeepSeekV4) {
  const std::string layer = "model.layers.3.";
  EXPECT_EQ(hugging_face_name("blk.3.attn_kv_a_mqa.weight"),
            layer + "self_attn.kv_a_proj_with_mqa.weight");
  EXPECT_EQ(hugging_face_name("blk.3.exp_probs_b.bias"),
            layer + "mlp.gate.e_score_correction_bias");
  EXPECT_EQ(hugging_face_name("blk.3.ffn_up_exps.weight"), layer + "mlp.experts.up_proj.weight");
  EXPECT_EQ(hugging_face_name("blk.3.ffn_up.12.weight"), layer + "mlp.experts.12.up_proj.weight");
  EXPECT_EQ(hugging_face_name("blk.3.indexer.k_norm.bias"),
            layer + "self_attn.indexer.k_norm.bias");
  EXPECT_EQ(hugging_face_name("blk.3.attn_sinks.weight", "deepseek4"), "layers.3.attn.attn_sink");
  EXPECT_EQ(hugging_face_name("output_hc_fn.weight", "deepseek4"), "hc_head_fn");
  EXPECT_EQ(hugging_face_name("blk.3.ffn_down_exps.weight", "deepseek4"),
            "layers.3.ffn.experts.w2.weight");
  EXPECT_EQ(hugging_face_name("blk.3.ffn_down_exps.scale", "deepseek4"),
            "layers.3.ffn.experts.w2.scale");
  EXPECT_EQ(hugging_face_name("blk.3.strange.scale", "deepseek4"), "blk.3.strange.scale");
  EXPECT_EQ(hugging_face_name("hc.scale", "deepseek4"), "hc.scale");
}

TEST(GgufNames, FindsTheSliceThatANameMayStandFor) {
  const auto up = split_slice_name("model.layers.3.mlp.experts.12.up_proj.weight");
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->index, 12);
  EXPECT_EQ(up->stacked, "model.layers.3.mlp.experts.up_proj.weight");
  EXPECT_EQ(up->fused, "model.layers.3.mlp.experts.gate_up_proj.weight");
  EXPECT_TRUE(up->second_half);
  const auto down = split_slice_name("a.7.down_proj.weight");
  ASSERT_TRUE(down.has_value());
  EXPECT_EQ(down->stacked, "a.down_proj.weight");
  EXPECT_EQ(down->fused, "");
  for (const char* strange : {"", ".", "..", "7", ".7", "a.7", ".7.", "a.x.weight",
                              "a.99999999999999999999.weight", "a.-1.weight", "a.07.weight"}) {
    const auto slice = split_slice_name(strange);
    EXPECT_EQ(slice.has_value() ? slice->index : 7, 7) << strange;
  }
}

// A Hugging Face folder with one tensor.
void write_model(const TemporaryFolder& folder, const std::string& config,
                 const std::string& dtype = "F32") {
  folder.write("config.json", config);
  folder.write(
      "model.safetensors",
      safetensors_bytes("{\"w\":{\"dtype\":\"" + dtype + "\",\"shape\":[1,8],\"data_offsets\":[0," +
                            (dtype == "F32" ? "32" : "8") + "]}}",
                        dtype == "F32" ? 32 : 8));
}

TEST(HuggingFaceCheckpoint, RefusesQuantizedModelsByMethod) {
  const TemporaryFolder folder;
  write_model(folder, R"({"quantization_config":{"quant_method":"bitsandbytes"}})");
  EXPECT_THAT(error_of(folder.path()),
              HasSubstr("quantized with 'bitsandbytes', which is not supported"));
  write_model(folder, R"({"quantization_config":{}})");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("an unnamed method"));
  write_model(folder, R"({"quantization_config":null})");
  EXPECT_EQ(error_of(folder.path()), "no error");
}

TEST(HuggingFaceCheckpoint, RefusesDtypesByNameAndOnlyWhenUsed) {
  const TemporaryFolder folder;
  write_model(folder, "{}", "F8_E4M3");
  const auto checkpoint = opened(folder.path());
  ASSERT_TRUE(checkpoint);
  EXPECT_THAT(checkpoint->matrix("w").error().message(), HasSubstr("is stored as F8_E4M3"));
}

TEST(HuggingFaceCheckpoint, ReadsGenerationDefaultsAndIgnoresRemoteCode) {
  const TemporaryFolder folder;
  write_model(folder, R"({"eos_token_id":1,"auto_map":{"AutoModel":"evil.py--M"}})");
  folder.write("evil.py", "raise SystemExit");
  folder.write("generation_config.json", R"({"eos_token_id":[2],"temperature":0.6})");
  const auto checkpoint = opened(folder.path());
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(checkpoint->generation_defaults().eos, (std::vector<Token>{1, 2}));
  EXPECT_EQ(checkpoint->generation_defaults().temperature, 0.6F);
  ConfigReader in(checkpoint->config());
  bool tied = false;
  in.read("tie_word_embeddings", tied);
  EXPECT_TRUE(tied);  // there is no lm_head
  folder.write("generation_config.json", "{");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("generation_config.json: not valid JSON"));
}

TEST(HuggingFaceCheckpoint, OpensShardsByTheirIndex) {
  const TemporaryFolder folder;
  folder.write("config.json", "{}");
  const auto shard = [](const std::string& tensor) {
    return safetensors_bytes(
        "{\"" + tensor + "\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}}", 32);
  };
  folder.write("m-1.safetensors", shard("a"));
  folder.write("m-2.safetensors", shard("b"));
  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  const auto checkpoint = opened(folder.path());
  ASSERT_TRUE(checkpoint);
  EXPECT_TRUE(checkpoint->vector("a", 8).has_value());
  EXPECT_TRUE(checkpoint->vector("b", 8).has_value());
  EXPECT_EQ(checkpoint->tensors().size(), 2U);
  folder.write("m-2.safetensors", shard("c"));
  EXPECT_THAT(error_of(folder.path()), HasSubstr("tensor 'b' should be in m-2.safetensors"));
  fs::remove(folder.path() / "m-2.safetensors");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("m-2.safetensors: No such file"));
}

TEST(OpenCheckpoint, SaysWhatAPathLacks) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of(folder.path() / "nowhere"), HasSubstr("there is no "));
  EXPECT_THAT(error_of(folder.path()), HasSubstr("holds no model"));
  folder.write("a.gguf", "x");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("a.gguf: not a GGUF file"));
  folder.write("b.gguf", "x");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("holds 2 GGUF models, name one of them: a.gguf"));
}

TEST(OpenCheckpoint, ReadsNoPickles) {
  const TemporaryFolder folder;
  folder.write("config.json", "{}");
  folder.write("pytorch_model.bin", "PK\x03\x04");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("(.bin, .pt) can run code when loaded"));
}

}  // namespace
}  // namespace kun
