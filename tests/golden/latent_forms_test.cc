// The two forms of latent attention compute the same, and where they round differently the
// difference is bounded by how they round.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "backends/cpu/cpu_device.h"
#include "nn/latent_attention.h"
#include "nn/rope.h"
#include "test_checkpoint.h"

namespace kun {
namespace {

constexpr int kBlockLength = 32;
constexpr int kContext = 96;  // tokens in the cache before the rows that are compared
constexpr int kRows = 16;

nn::LatentAttentionShape shape_of(nn::LatentForm form, DType packed) {
  nn::LatentAttentionShape shape;
  shape.hidden = 256;
  shape.heads = 6;
  shape.query_rank = 96;
  shape.latent = 128;
  shape.nope = 64;
  shape.rope = 32;
  shape.value = 48;
  shape.scale = 1.0F / std::sqrt(96.0F);
  shape.packed = packed;
  shape.form = form;
  return shape;
}

TestCheckpoint make_checkpoint(const nn::LatentAttentionShape& s) {
  TestCheckpoint checkpoint(7);
  checkpoint.add_matrix("q_a_proj.weight", s.query_rank, s.hidden);
  checkpoint.add_vector("q_a_layernorm.weight", s.query_rank);
  checkpoint.add_matrix("q_b_proj.weight", s.heads * (s.nope + s.rope), s.query_rank);
  checkpoint.add_matrix("kv_a_proj_with_mqa.weight", s.latent + s.rope, s.hidden);
  checkpoint.add_vector("kv_a_layernorm.weight", s.latent);
  checkpoint.add_matrix("kv_b_proj.weight", s.heads * (s.nope + s.value), s.latent);
  checkpoint.add_matrix("o_proj.weight", s.hidden, s.heads * s.value);
  return checkpoint;
}

// Attention's output for the last kRows of kContext + kRows tokens; the first kContext are computed
// in one step before.
std::vector<float> attend(Device& device, nn::LatentForm form) {
  Ops& ops = device.ops();
  const DType dtype = device.cache_dtype();
  const nn::LatentAttentionShape shape = shape_of(form, dtype);
  const TestCheckpoint checkpoint = make_checkpoint(shape);
  WeightLoader weights(checkpoint, ops);
  const nn::LatentAttention attention(nn::Loader(weights), shape, 0);
  CHECK(weights.status().ok());

  KvStorage cache;
  const KvPlane plane = nn::LatentAttention::planes(shape, dtype).front();
  const int block_count = (kContext + kRows + kBlockLength - 1) / kBlockLength;
  CachePlane bytes{.dtype = dtype,
                   .width = plane.width,
                   .tokens_per_block = kBlockLength,
                   .block_count = block_count};
  const auto memory = ops.allocate(bytes.block_bytes() * block_count);
  bytes.data = memory.get();
  cache.planes = {{bytes}};

  const nn::Rope rope({.width = static_cast<int>(shape.rope),
                       .theta = 10000.0,
                       .layout = RopeLayout::kInterleaved,
                       .scaling = {}});
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(block_count));
  std::iota(blocks.rbegin(), blocks.rend(), 0);
  std::vector<float> out;
  for (const auto& [first, count] : {std::pair{0, kContext}, std::pair{kContext, kRows}}) {
    nn::Scratch scratch(ops);
    const TensorView in = scratch.take({count, shape.hidden});
    const TensorView residual = scratch.take({count, shape.hidden});
    const TensorView cos_sin = scratch.take({count, rope.pair_count(), 2});
    GroupBatch batch;
    std::vector<std::int32_t> positions;
    for (int t = 0; t < count; ++t) {
      positions.push_back(first + t);
      batch.slots.push_back(blocks[static_cast<std::size_t>((first + t) / kBlockLength)] *
                                kBlockLength +
                            (first + t) % kBlockLength);
      for (std::int64_t i = 0; i < shape.hidden; ++i) in.row<float>(t)[i] = normal(random);
      std::fill_n(residual.row<float>(t), shape.hidden, 0.0F);
    }
    batch.slices.push_back({0, count, first, blocks});
    rope.fill(positions, cos_sin);
    attention(batch, cache, in, cos_sin, rope.layout(), residual, scratch);
    out.assign(residual.row<float>(0), residual.row<float>(0) + count * shape.hidden);
  }
  return out;
}

double root_mean_square(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

class LatentForms : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kernels, LatentForms, testing::ValuesIn(cpu_kernel_names()));

// In F32 nothing but the order of sums differs: some hundred roundings of 2^-24.
TEST_P(LatentForms, AgreeInFloat32) {
  const auto device =
      open_cpu_device({.thread_count = 2, .kernels = GetParam(), .compute = ComputeType::kFloat32});
  ASSERT_TRUE(device) << device.error().message();
  const auto naive = attend(**device, nn::LatentForm::kNaive);
  const auto absorbed = attend(**device, nn::LatentForm::kAbsorbed);
  EXPECT_LT(largest_difference(naive, absorbed), 1e-5 * root_mean_square(naive));
}

// In BF16 (relative rounding error e = 2^-9) the forms round different things: naive rounds keys
// and values of each head, absorbed rounds queries and results in the latent space. A score is a
// sum of products whose factors are rounded once each, independently: its error is about e sqrt(2)
// times the score's own size, which for the scores here (standard deviation below 2) moves a weight
// by a factor within 1 +- 6 e. Values add e, weights e, the way back e: 9 e for each form, 18 e for
// two, of which a sum of many rounds less; outputs are within 4 of their root mean square.
TEST_P(LatentForms, AgreeWithinTheRoundingOfBfloat16) {
  const auto device = open_cpu_device(
      {.thread_count = 2, .kernels = GetParam(), .compute = ComputeType::kBFloat16});
  ASSERT_TRUE(device) << device.error().message();
  const auto naive = attend(**device, nn::LatentForm::kNaive);
  const auto absorbed = attend(**device, nn::LatentForm::kAbsorbed);
  const double bound = 18.0 * 0x1p-9 * 4.0 * root_mean_square(naive);
  EXPECT_LT(largest_difference(naive, absorbed), bound);
  EXPECT_NE(naive, absorbed) << "the forms were not told apart";
}

}  // namespace
}  // namespace kun
