// kun-tiny-v3, the model that this project trained (tools/tiny_v3): unlike random weights it has
// learned something, so that losses mean something. Its expected values are those of the PyTorch
// program that trained it, from the stored weights in F64.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "runtime/engine_setup.h"

namespace kun {
namespace {

std::filesystem::path model_folder() {
  return std::filesystem::path(KUN_TEST_DATA).parent_path().parent_path() / "models/kun-tiny-v3";
}

struct Expected {
  std::vector<Token> tokens;
  double loss = 0.0;             // mean over all tokens but the first
  std::size_t logits_after = 0;  // the rows below are the last ones before this position
  std::vector<std::vector<double>> last_logits;
};

Expected read_expected() {
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.load((model_folder() / "expected.json").string());
  Expected expected;
  for (const std::int64_t token : root["tokens"].get_array()) {
    expected.tokens.push_back(static_cast<Token>(token));
  }
  expected.loss = root["loss"];
  expected.logits_after = static_cast<std::size_t>(root["logits_after"].get_uint64().value());
  for (const simdjson::dom::element row : root["last_logits"].get_array()) {
    auto& values = expected.last_logits.emplace_back();
    for (const double value : row.get_array()) values.push_back(value);
  }
  return expected;
}

// The model, loaded, with a function that shows all logits of the expected text.
class TinyV3 : public testing::Test {
 protected:
  template <class See>
  void read(const DeviceOptions& options, const See& see) {
    auto device = open_cpu_device(options);
    ASSERT_TRUE(device) << device.error().message();
    auto bundle = load_bundle(model_folder().string(), **device, {});
    ASSERT_TRUE(bundle) << bundle.error().message();
    auto worker = make_text_worker(**bundle, (*device)->ops(), std::ssize(expected_.tokens));
    ASSERT_TRUE(worker) << worker.error().message();
    const Status status = (*worker)->evaluate_text(
        expected_.tokens, 256,
        [&](std::size_t, std::int32_t position, std::span<const float> logits) {
          see(static_cast<std::size_t>(position), logits);
        });
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // Mean of -log p(next token) over the text.
  double loss(const DeviceOptions& options) {
    double sum = 0.0;
    read(options, [&](std::size_t position, std::span<const float> logits) {
      if (position + 1 == expected_.tokens.size()) return;
      const double top{*std::ranges::max_element(logits)};
      double scale = 0.0;
      for (const float logit : logits) scale += std::exp(double{logit} - top);
      const auto next = static_cast<std::size_t>(expected_.tokens[position + 1]);
      sum += top + std::log(scale) - double{logits[next]};
    });
    return sum / static_cast<double>(expected_.tokens.size() - 1);
  }

  const Expected expected_ = read_expected();
};

DeviceOptions with(const std::string& kernels, ComputeType compute) {
  DeviceOptions options;
  options.thread_count = 2;
  options.kernels = kernels;
  options.compute = compute;
  return options;
}

TEST_F(TinyV3, HasTheLogitsOfTheProgramThatTrainedIt) {
  for (const std::string& kernels : cpu_kernel_names()) {
    const std::size_t first = expected_.logits_after - expected_.last_logits.size();
    read(with(kernels, ComputeType::kFloat32),
         [&](std::size_t position, std::span<const float> logits) {
           if (position < first || position >= expected_.logits_after) return;
           const auto& wanted = expected_.last_logits[position - first];
           ASSERT_EQ(logits.size(), wanted.size());
           for (std::size_t i = 0; i < wanted.size(); ++i) {
             ASSERT_NEAR(logits[i], wanted[i], 1e-4) << kernels << ", position " << position;
           }
         });
  }
}

// F32 follows F64 to the rounding of sums. BF16 activations and cache, which every served model
// has, cost at most the half percent of perplexity that is promised for the fast path.
TEST_F(TinyV3, ReadsTheHeldOutTextAsWellAsWhenItWasTrained) {
  EXPECT_NEAR(loss(with("", ComputeType::kFloat32)), expected_.loss, 1e-4);
  EXPECT_NEAR(loss(with("", ComputeType::kBFloat16)), expected_.loss, std::log(1.005));
}

// A block of 32 weights of deviation s reaches about 2.5 s: in 8 bits its step is 2.5 s / 127, an
// error of .006 s a weight, which is lost beside the rounding of activations; in 4 bits 2.5 s / 8,
// an error of .09 s. A product is wrong by these same parts, since errors of all weights are
// independent, and the loss grows with their squares: about .1 and one percent of perplexity, to
// which a text of 255 tokens adds as much noise.
TEST_F(TinyV3, LosesLittleToEightBitsAndNotMuchToFour) {
  DeviceOptions options = with("", ComputeType::kBFloat16);
  options.weights = WeightTarget::kInt8;
  EXPECT_NEAR(loss(options), expected_.loss, std::log(1.005));
  options.weights = WeightTarget::kInt4;
  EXPECT_NEAR(loss(options), expected_.loss, std::log(1.02));
}

}  // namespace
}  // namespace kun
