// Whole models under every weight format, with and without the packed-weights cache: what a user of
// --weight-format gets.
#include <gtest/gtest.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "models/registry.h"
#include "runtime/engine_setup.h"
#include "runtime/model_bundle.h"

namespace kun {
namespace {

namespace fs = std::filesystem;

const fs::path kTinyModels = KUN_TEST_DATA "/tiny-models";

struct Expected {
  std::vector<Token> tokens;
  std::vector<float> logits;  // of all positions, one after the other
};

Expected read_expected(const std::string& model) {
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.load((kTinyModels / model / "expected.json").string());
  Expected expected;
  for (const std::int64_t token : root["tokens"].get_array()) {
    expected.tokens.push_back(static_cast<Token>(token));
  }
  for (const simdjson::dom::element row : root["logits"].get_array()) {
    for (const double value : row.get_array()) {
      expected.logits.push_back(static_cast<float>(value));
    }
  }
  return expected;
}

struct Outcome {
  std::vector<float> logits;
  bool from_cache = false;
  std::int64_t image_bytes = 0;  // in the cache, found or added
  Status status;
};

Outcome run_folder(const fs::path& folder, const std::string& model, const DeviceOptions& options,
                   const fs::path& cache) {
  Outcome out;
  const auto work = [&]() -> Status {
    ASSIGN_OR_RETURN(const auto device, open_cpu_device(options));
    BundleOptions bundle_options;
    bundle_options.packed_cache_folder = cache.string();
    ASSIGN_OR_RETURN(const auto bundle, load_bundle(folder.string(), *device, bundle_options));
    if (bundle->packed_cache != nullptr) {
      out.from_cache = bundle->packed_cache->found();
      out.image_bytes = static_cast<std::int64_t>(bundle->packed_cache->image_bytes());
    }
    const std::vector<Token> tokens = read_expected(model).tokens;
    ASSIGN_OR_RETURN(const auto worker,
                     make_text_worker(*bundle, device->ops(), std::ssize(tokens)));
    return worker->evaluate_text(
        tokens, 1 << 20, [&](std::size_t, std::int32_t, std::span<const float> logits) {
          out.logits.insert(out.logits.end(), logits.begin(), logits.end());
        });
  };
  out.status = work();
  return out;
}

Outcome run(const std::string& model, const DeviceOptions& options, const fs::path& cache = {}) {
  return run_folder(kTinyModels / model, model, options, cache);
}

// The distance from the expected logits of a position over their size, for the median position:
// where a gate's choice is so near that a rounding turns it, a tiny model's logits are others.
double relative_error(const std::string& model, const std::vector<float>& logits) {
  const Expected expected = read_expected(model);
  const std::size_t positions = expected.tokens.size();
  EXPECT_EQ(logits.size(), expected.logits.size());
  if (logits.size() != expected.logits.size() || positions == 0) return INFINITY;
  const std::size_t width = logits.size() / positions;
  std::vector<double> errors;
  for (std::size_t p = 0; p < positions; ++p) {
    double error = 0;
    double square = 0;
    for (std::size_t i = p * width; i < (p + 1) * width; ++i) {
      error +=
          std::pow(static_cast<double>(logits[i]) - static_cast<double>(expected.logits[i]), 2);
      square += std::pow(static_cast<double>(expected.logits[i]), 2);
    }
    errors.push_back(std::sqrt(error / square));
  }
  std::ranges::nth_element(errors, errors.begin() + std::ssize(errors) / 2);
  return errors[errors.size() / 2];
}

DeviceOptions fast(WeightTarget weights, const std::string& kernels = "") {
  return {.thread_count = 2, .kernels = kernels, .weights = weights};
}

class Formats : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("kun_formats_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) out.push_back(entry.path());
    return out;
  }

  fs::path folder_;
};

struct TinyModel {
  const char* name;
  int products;  // that follow one another, the head among them; 0: not for the bounds
};
// Two layers: into attention, out of it, into the MLP, out of it. Latent attention takes three more
// (queries in two steps, keys and values from the latent). V4's routing and streams make a tiny
// model another at a rounding: it is here for what must be equal.
constexpr int kDense = 2 * 4 + 1;
constexpr int kLatent = 2 * 7 + 1;
constexpr TinyModel kModels[] = {{"llama-mha", kDense},
                                 {"llama-gptq-int4", kDense},
                                 {"llama-gptq-int4-descact", kDense},
                                 {"llama-gptq_v2-int8", kDense},
                                 {"llama-awq-gemm", kDense},
                                 {"llama-ct-pack-int4-sym", kDense},
                                 {"llama-ct-pack-int4-asym", kDense},
                                 {"llama-ct-int8", kDense},
                                 {"llama-ct-fp8", kDense},
                                 {"deepseek-v3-fp8", kLatent},
                                 {"deepseek-v4-fp8fp4", 0}};
constexpr WeightTarget kTargets[] = {WeightTarget::kAuto, WeightTarget::kAsStored,
                                     WeightTarget::kBF16, WeightTarget::kInt8, WeightTarget::kInt4};

// What one product loses, over its size. Numbers of normal distribution in blocks of 32, of which
// the largest lies at 2.1 deviations and the range spans 4.1 (order statistics of 32):
// * 8-bit codes: steps of 2.1 / 127, and an even error of a step / sqrt(12): 0.48 %. Activations
//   behind a gate have longer tails, a largest at up to 4: 0.9 %.
// * 4-bit codes with a minimum: steps of 4.1 / 15, so 7.9 %.
// * bfloat16: at most 2^-9 of each number, evenly below that: 2^-9 / sqrt(3), of both factors, and
//   of what the cache and attention's weights round, 0.2 % together.
double product_error(WeightTarget target) {
  constexpr double kActivation = 0.009;
  constexpr double kRounding = 0.002;
  const double weight = target == WeightTarget::kInt4   ? 0.079
                        : target == WeightTarget::kInt8 ? 0.0048
                                                        : kRounding;
  return std::hypot(kActivation, kRounding, weight);
}

// Errors of products are independent of each other, so squares add up; what a layer adds to is not
// made less exact by it, so the sum bounds it from above.
double bound(const TinyModel& model, WeightTarget target) {
  return std::sqrt(static_cast<double>(model.products)) * product_error(target);
}

TEST_F(Formats, StayNearTheLogitsOnEveryKernelTable) {
  for (const TinyModel& model : kModels) {
    if (model.products == 0) continue;
    for (const std::string& kernels : cpu_kernel_names()) {
      for (const WeightTarget target : kTargets) {
        const Outcome result = run(model.name, fast(target, kernels));
        ASSERT_TRUE(result.status.ok()) << result.status.message();
        const double error = relative_error(model.name, result.logits);
        EXPECT_LT(error, bound(model, target))
            << model.name << ", " << kernels << ", target " << static_cast<int>(target);
      }
    }
  }
}

TEST_F(Formats, GiveTheSameLogitsFromTheCacheToTheBit) {
  for (const TinyModel& model : kModels) {
    for (const WeightTarget target :
         {WeightTarget::kAuto, WeightTarget::kBF16, WeightTarget::kInt8, WeightTarget::kInt4}) {
      const Outcome without = run(model.name, fast(target));
      const Outcome first = run(model.name, fast(target), folder_);
      const Outcome second = run(model.name, fast(target), folder_);
      ASSERT_TRUE(second.status.ok()) << second.status.message();
      EXPECT_FALSE(first.from_cache);
      EXPECT_TRUE(second.from_cache) << model.name;
      EXPECT_EQ(first.image_bytes, second.image_bytes) << model.name;
      EXPECT_EQ(first.logits, without.logits) << model.name;
      EXPECT_EQ(second.logits, without.logits) << model.name;
    }
  }
}

// Heads' pieces of kv_b_proj are made by all threads at once, other matrices row by row: whoever
// makes what, the file that keeps them is the same, byte by byte.
TEST_F(Formats, AreTheSameBytesWhateverTheThreads) {
  const auto kept = [&](const fs::path& model, int threads) {
    fs::remove_all(folder_);
    DeviceOptions options = fast(WeightTarget::kInt8);
    options.thread_count = threads;
    EXPECT_TRUE(run_folder(kTinyModels / model, "deepseek-v3", options, folder_).status.ok());
    EXPECT_EQ(files().size(), 1U);
    std::ifstream file(files().front(), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  // kv_b_proj in one piece, and a pair of matrices for each head.
  for (const char* model : {"deepseek-v3", "deepseek-v3/model.gguf"}) {
    const std::string alone = kept(model, 1);
    EXPECT_GT(alone.size(), 10000U);
    for (const int threads : {2, 5}) EXPECT_EQ(kept(model, threads), alone) << model;
  }
}

TEST_F(Formats, DoNotMeetInTheCache) {
  const Outcome eight = run("llama-mha", fast(WeightTarget::kInt8), folder_);
  const Outcome four = run("llama-mha", fast(WeightTarget::kInt4), folder_);
  EXPECT_FALSE(four.from_cache);
  EXPECT_NE(eight.logits, four.logits);
  EXPECT_FALSE(run("llama-ct-int8", fast(WeightTarget::kInt8), folder_).from_cache);
  DeviceOptions exact;
  exact.compute = ComputeType::kFloat32;
  EXPECT_FALSE(run("llama-mha", exact, folder_).from_cache);
}

TEST_F(Formats, LoadFromTheSourceWhenTheCacheIsDamaged) {
  const Outcome whole = run("llama-mha", fast(WeightTarget::kInt8), folder_);
  ASSERT_EQ(files().size(), 1U);
  {
    std::fstream file(files().front(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(5000);  // within an image
    const auto byte = static_cast<char>(file.peek() ^ 1);
    file.seekp(5000);
    file.put(byte);
  }
  const Outcome repaired = run("llama-mha", fast(WeightTarget::kInt8), folder_);
  ASSERT_TRUE(repaired.status.ok()) << repaired.status.message();
  EXPECT_EQ(repaired.logits, whole.logits);
  EXPECT_TRUE(files().empty());  // and the next start makes a new one
  EXPECT_FALSE(run("llama-mha", fast(WeightTarget::kInt8), folder_).from_cache);
  EXPECT_TRUE(run("llama-mha", fast(WeightTarget::kInt8), folder_).from_cache);
}

// As `kun pull` does it: the new file takes the old one's name.
TEST_F(Formats, AreConvertedAgainWhenAFileIsReplaced) {
  const fs::path model = folder_ / "model";
  const fs::path cache = folder_ / "cache";
  fs::create_directories(folder_);
  fs::copy(kTinyModels / "llama-mha", model, fs::copy_options::recursive);
  const auto start = [&] {
    return run_folder(model, "llama-mha", fast(WeightTarget::kInt8), cache);
  };
  const Outcome first = start();
  EXPECT_TRUE(start().from_cache);
  fs::copy(model / "model.safetensors", model / "new");
  {
    std::fstream file(model / "new", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-2, std::ios::end);  // a bit of the last tensor's last weight
    const auto byte = static_cast<char>(file.peek() ^ 0x40);
    file.seekp(-2, std::ios::end);
    file.put(byte);
  }
  fs::rename(model / "new", model / "model.safetensors");
  const Outcome second = start();
  ASSERT_TRUE(second.status.ok()) << second.status.message();
  EXPECT_FALSE(second.from_cache);
  EXPECT_NE(second.logits, first.logits);
  EXPECT_TRUE(start().from_cache);
  EXPECT_EQ(start().logits, second.logits);
}

// A configuration that asks for a layer more: the first tensor of it is a vector.
TEST_F(Formats, NameFileAndTensorWhenOneIsMissing) {
  fs::create_directories(folder_);
  fs::copy(kTinyModels / "llama-mha" / "model.safetensors", folder_);
  std::ifstream source(kTinyModels / "llama-mha" / "config.json");
  std::string config{std::istreambuf_iterator<char>(source), {}};
  const std::string layers = "\"num_hidden_layers\": 2";
  ASSERT_NE(config.find(layers), std::string::npos);
  config.replace(config.find(layers), layers.size(), "\"num_hidden_layers\": 3");
  std::ofstream(folder_ / "config.json") << config;
  const Outcome result = run_folder(folder_, "llama-mha", fast(WeightTarget::kAuto), {});
  EXPECT_EQ(result.status.message(),
            folder_.string() + ": tensor 'model.layers.2.input_layernorm.weight' is missing");
}

TEST_F(Formats, AreRefusedWhereArithmeticIsExact) {
  DeviceOptions options = fast(WeightTarget::kInt4);
  options.compute = ComputeType::kFloat32;
  const Outcome result = run("llama-mha", options);
  EXPECT_EQ(result.status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(result.status.message().find("--weight-format"), std::string::npos);
}

// What is planned is what the cache then holds, so that neither leaves a matrix out: also of those
// that models make themselves (heads' pieces of kv_b_proj, exact gates).
TEST_F(Formats, ArePlannedAsTheyAreLoadedAndKept) {
  constexpr TinyModel kMore[] = {{"qwen2-bias-tied", 0},
                                 {"deepseek-moe", 0},
                                 {"deepseek-v2-lite", 0},
                                 {"deepseek-v32", 0},
                                 {"deepseek-v4", 0}};
  std::vector<TinyModel> models(std::begin(kModels), std::end(kModels));
  models.insert(models.end(), std::begin(kMore), std::end(kMore));
  for (const TinyModel& model : models) {
    for (const WeightTarget target : kTargets) {
      auto device = open_cpu_device(fast(target));
      ASSERT_TRUE(device.has_value());
      const auto checkpoint = open_checkpoint(kTinyModels / model.name);
      ASSERT_TRUE(checkpoint.has_value());
      const auto plan = plan_weights(**checkpoint, (*device)->ops(), (*device)->cache_dtype());
      ASSERT_TRUE(plan.has_value()) << plan.error().message();
      const Outcome loaded = run(model.name, fast(target), folder_);
      ASSERT_TRUE(loaded.status.ok()) << loaded.status.message();
      EXPECT_EQ(plan->packed_bytes, loaded.image_bytes)
          << model.name << " " << static_cast<int>(target);
      const bool experts = (*checkpoint)->config().has("n_routed_experts");
      EXPECT_EQ(plan->token_bytes < loaded.image_bytes, experts) << model.name;
    }
  }
}

}  // namespace
}  // namespace kun
