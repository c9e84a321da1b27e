// Tiny checkpoints against stored logits. The expected values come from a float64 program that was
// written from the models' formulas and agrees with llama.cpp to 1e-5.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/checkpoint.h"
#include "executor/worker.h"
#include "models/registry.h"

namespace kun {
namespace {

struct Expected {
  std::vector<Token> tokens;
  std::vector<std::vector<double>> logits;  // [position][vocabulary]
};

Expected read_expected(const std::filesystem::path& path) {
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.load(path.string());
  Expected expected;
  for (const std::int64_t token : root["tokens"].get_array()) {
    expected.tokens.push_back(static_cast<Token>(token));
  }
  for (const simdjson::dom::element row : root["logits"].get_array()) {
    std::vector<double>& values = expected.logits.emplace_back();
    for (const double value : row.get_array()) values.push_back(value);
  }
  return expected;
}

struct Case {
  std::string model;
  std::string file;     // "model.gguf", or empty for the folder itself
  std::string kernels;  // empty: the best of this machine
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + (info.param.file.empty() ? "_safetensors_" : "_gguf_") +
                     (info.param.kernels.empty() ? "best" : info.param.kernels);
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

class Golden : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kBlockCount = 16;

  void SetUp() override {
    const std::filesystem::path folder =
        std::filesystem::path(KUN_TEST_DATA) / "tiny-models" / GetParam().model;
    expected_ = read_expected(folder / "expected.json");
    DeviceOptions options;
    options.thread_count = 2;
    options.kernels = GetParam().kernels;
    options.compute = ComputeType::kFloat32;
    auto device = open_cpu_device(options);
    ASSERT_TRUE(device) << device.error().message();
    device_ = *std::move(device);
    auto checkpoint = open_checkpoint(folder / GetParam().file);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    checkpoint_ = *std::move(checkpoint);
    auto model = load_model(*checkpoint_, device_->ops(), {.cache_dtype = DType::kF32});
    ASSERT_TRUE(model) << model.error().message();
    auto worker =
        Worker::create(*std::move(model), device_->ops(),
                       {.block_counts = {kBlockCount},
                        .vocabulary_limit = static_cast<int>(expected_.logits.front().size())});
    ASSERT_TRUE(worker) << worker.error().message();
    worker_ = *std::move(worker);
  }

  void expect_row(std::int32_t position, std::span<const float> logits) const {
    const auto& wanted = expected_.logits[static_cast<std::size_t>(position)];
    ASSERT_EQ(logits.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_NEAR(logits[i], wanted[i], 1e-4) << "position " << position << ", token " << i;
    }
  }

  void expect_text_in_chunks_of(int chunk) {
    std::size_t row_count = 0;
    const Status status = worker_->evaluate_text(
        expected_.tokens, chunk,
        [&](std::size_t, std::int32_t position, std::span<const float> logits) {
          expect_row(position, logits);
          ++row_count;
        });
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(row_count, expected_.tokens.size());
  }

  // A slice of the expected text that keeps its cache in block `block` alone.
  PlanSlice slice(SequenceId id, BlockId block, int first, int count) const {
    PlanSlice made;
    made.sequence = id;
    made.first_position = first;
    made.tokens.assign(expected_.tokens.begin() + first, expected_.tokens.begin() + first + count);
    made.blocks = {{block}};
    for (int i = 0; i < count; ++i) made.wanted.push_back(i);
    return made;
  }

  Expected expected_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Worker> worker_;
};

TEST_P(Golden, MatchesWhole) {
  expect_text_in_chunks_of(1 << 20);
}

TEST_P(Golden, MatchesTokenByToken) {
  expect_text_in_chunks_of(1);
}

TEST_P(Golden, MatchesInChunksOfSeven) {
  expect_text_in_chunks_of(7);
}

TEST_P(Golden, MatchesInCompany) {
  // Three copies of the text advance at different speeds through the same steps.
  const auto length = static_cast<int>(expected_.tokens.size());
  const std::vector<int> paces{1, 3, 5};
  std::vector<int> done(paces.size(), 0);
  for (std::uint64_t step = 0; done.front() < length; ++step) {
    BatchPlan plan;
    plan.step = step;
    for (std::size_t i = 0; i < paces.size(); ++i) {
      const int count = std::min(paces[i], length - done[i]);
      if (count == 0) continue;
      plan.slices.push_back(slice(i, static_cast<BlockId>(2 * i), done[i], count));
      done[i] += count;
    }
    const Status status = worker_->evaluate(
        plan, [&](std::size_t which, std::int32_t offset, std::span<const float> logits) {
          expect_row(plan.slices[which].first_position + offset, logits);
        });
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* model :
       {"llama-mha", "llama-gqa-linear", "llama-gqa-llama3", "qwen2-bias-tied", "qwen3-yarn"}) {
    for (const char* file : {"", "model.gguf"}) {
      for (const std::string& kernels : cpu_kernel_names()) cases.push_back({model, file, kernels});
    }
  }
  for (const char* model :
       {"llama-gptq-int4", "llama-gptq-int4-descact", "llama-gptq_v2-int8", "llama-awq-gemm",
        "llama-ct-pack-int4-sym", "llama-ct-pack-int4-asym", "llama-ct-int8", "llama-ct-fp8"}) {
    for (const std::string& kernels : cpu_kernel_names()) cases.push_back({model, "", kernels});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(TinyModels, Golden, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace kun
