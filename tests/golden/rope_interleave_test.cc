// transformers' DeepSeek classes have a switch, rope_interleave, for weights whose RoPE pairs lie
// half a head apart instead of side by side. A tiny model whose rows are moved so must mean the
// same.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_file.h"
#include "executor/worker.h"
#include "models/registry.h"
#include "test_folder.h"

namespace kun {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = fs::path(KUN_TEST_DATA) / "tiny-models" / "deepseek-v3";

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

int number(const Config& config, std::string_view key) {
  ConfigReader read(config);
  int value = 0;
  read.read(key, value);
  EXPECT_TRUE(read.status().ok()) << read.status().message();
  return value;
}

// Of `width` rows from `first` on, the even ones first.
void part_rows(const SafetensorsTensor& tensor, std::int64_t first, std::int64_t width,
               std::string& file) {
  const std::size_t row_bytes = tensor.data.size() / static_cast<std::size_t>(tensor.shape[0]);
  const auto* begin = reinterpret_cast<const char*>(tensor.data.data());
  std::string moved;
  for (const std::int64_t odd : {0, 1}) {
    for (std::int64_t row = odd; row < width; row += 2) {
      moved.append(begin + static_cast<std::size_t>(first + row) * row_bytes, row_bytes);
    }
  }
  // `file` is a copy of the bytes that the tensor views.
  const std::string_view original(begin + static_cast<std::size_t>(first) * row_bytes,
                                  moved.size());
  const std::size_t at = file.find(original);
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(file.find(original, at + 1), std::string::npos);
  file.replace(at, moved.size(), moved);
}

// The model with its RoPE rows in halves, and a configuration that says `interleaved`.
fs::path make_model(const std::string& interleaved) {
  const fs::path folder = test_folder("rope_interleave_" + interleaved);
  const auto checkpoint = open_checkpoint(kSource);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message();
  const Config& config = (*checkpoint)->config();
  const std::int64_t heads = number(config, "num_attention_heads");
  const std::int64_t nope = number(config, "qk_nope_head_dim");
  const std::int64_t rope = number(config, "qk_rope_head_dim");
  const std::int64_t latent = number(config, "kv_lora_rank");
  const std::string weights = read_file(kSource / "model.safetensors");
  std::string moved = weights;
  const auto file = SafetensorsFile::parse(std::as_bytes(std::span(weights)), "model");
  EXPECT_TRUE(file) << file.error().message();
  for (const SafetensorsTensor& tensor : file->tensors()) {
    if (tensor.name.ends_with("kv_a_proj_with_mqa.weight")) part_rows(tensor, latent, rope, moved);
    if (!tensor.name.ends_with("q_b_proj.weight")) continue;
    for (std::int64_t h = 0; h < heads; ++h) {
      part_rows(tensor, h * (nope + rope) + nope, rope, moved);
    }
  }
  std::ofstream(folder / "model.safetensors", std::ios::binary) << moved;
  std::string text = read_file(kSource / "config.json");
  text.replace(text.find('{'), 1, "{\"rope_interleave\": " + interleaved + ",");
  std::ofstream(folder / "config.json") << text;
  return folder;
}

// The largest distance from the expected logits.
double error_of(const fs::path& folder) {
  simdjson::dom::parser parser;
  const simdjson::dom::element expected = parser.load((kSource / "expected.json").string());
  std::vector<Token> tokens;
  for (const std::int64_t token : expected["tokens"].get_array()) {
    tokens.push_back(static_cast<Token>(token));
  }
  std::vector<double> wanted;
  for (const simdjson::dom::element row : expected["logits"].get_array()) {
    for (const double value : row.get_array()) wanted.push_back(value);
  }
  double error = 0.0;
  std::size_t at = 0;
  const auto work = [&]() -> Status {
    ASSIGN_OR_RETURN(const auto device,
                     open_cpu_device({.thread_count = 1, .compute = ComputeType::kFloat32}));
    ASSIGN_OR_RETURN(const auto checkpoint, open_checkpoint(folder));
    ASSIGN_OR_RETURN(auto model,
                     load_model(*checkpoint, device->ops(), {.cache_dtype = DType::kF32}));
    const auto vocabulary = static_cast<int>(wanted.size() / tokens.size());
    ASSIGN_OR_RETURN(const auto worker,
                     Worker::create(std::move(model), device->ops(),
                                    {.block_counts = {16}, .vocabulary_limit = vocabulary}));
    return worker->evaluate_text(
        tokens, 1 << 20, [&](std::size_t, std::int32_t, std::span<const float> logits) {
          for (const float logit : logits) {
            error = std::max(error, std::fabs(static_cast<double>(logit) - wanted.at(at++)));
          }
        });
  };
  const Status status = work();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(at, wanted.size());
  return error;
}

TEST(RopeInterleave, TurnsPairsThatLieHalfAHeadApartWhereTheConfigurationSaysSo) {
  EXPECT_LT(error_of(make_model("false")), 1e-4);
}

// The moved rows do matter: read side by side they give another model.
TEST(RopeInterleave, TurnsNeighboursOtherwise) {
  EXPECT_GT(error_of(make_model("true")), 1e-2);
}

}  // namespace
}  // namespace kun
