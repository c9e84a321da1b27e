// Attention through Ops: the right values from any cache geometry, and a row's bits unchanged by
// its neighbours, the chunks of its prompt, the length of other sequences and the thread count.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "backends/cpu/attention_run.h"
#include "backends/cpu/cpu_device.h"
#include "backends/cpu/random_weights.h"
#include "backends/cpu/select.h"

namespace kun {
namespace {

struct Shape {
  int heads;
  int kv_heads;
  int dim;
  int tokens_per_block;
};

// What is computed in, and what the cache holds.
struct Arithmetic {
  ComputeType compute;
  std::optional<DType> cache{};
};
constexpr Arithmetic kArithmetics[] = {
    {ComputeType::kFloat32}, {ComputeType::kBFloat16}, {ComputeType::kBFloat16, DType::kI8}};

// One device with a cache, whose blocks start as NaN: nothing may read what was not written.
class Cache {
 public:
  Cache(const std::string& kernels, Arithmetic arithmetic, int threads, Shape shape, int positions,
        bool mark_values = true)
      : shape_(shape), positions_(positions) {
    auto opened = open_cpu_device({.thread_count = threads,
                                   .kernels = kernels,
                                   .compute = arithmetic.compute,
                                   .cache = arithmetic.cache});
    CHECK(opened.has_value());
    device_ = *std::move(opened);
    const int blocks = (positions + shape.tokens_per_block - 1) / shape.tokens_per_block;
    for (CachePlane* plane : {&keys_, &values_}) {
      plane->dtype = device_->cache_dtype();
      plane->width = shape.kv_heads * shape.dim;
      if (plane->dtype == DType::kI8) plane->head_width = shape.dim;
      plane->tokens_per_block = shape.tokens_per_block;
      plane->block_count = blocks + 3;
      const std::int64_t bytes = plane->block_bytes() * plane->block_count;
      memory_.push_back(device_->ops().allocate(bytes));
      plane->data = memory_.back().get();
      std::memset(plane->data, 0xFF, static_cast<std::size_t>(bytes));
    }
    if (mark_values) {
      values_.role = CacheRole::kValues;
      values_.head_width = shape.dim;
    }
    // Blocks out of order.
    for (int b = 0; b < blocks; ++b) blocks_.push_back((b % 2 == 0 ? b + 1 : b - 1) + 1);
  }

  void store(std::vector<float>& keys, std::vector<float>& values, int first, int count) {
    std::vector<std::int32_t> slots;
    for (int p = first; p < first + count; ++p) {
      slots.push_back(blocks_[static_cast<std::size_t>(p / shape_.tokens_per_block)] *
                          shape_.tokens_per_block +
                      p % shape_.tokens_per_block);
    }
    for (auto [plane, data] : {std::pair{&keys_, &keys}, std::pair{&values_, &values}}) {
      const TensorView view(reinterpret_cast<std::byte*>(data->data()), DType::kF32,
                            {positions_, plane->width});
      device_->ops().store_cache(view.slice_rows(first, count), slots, *plane);
    }
  }

  struct Range {
    int first;
    int count;
  };

  // All but the slices.
  AttentionArguments arguments(std::vector<float>& query, std::vector<float>& out,
                               std::int64_t rows) const {
    AttentionArguments result;
    result.query = TensorView(reinterpret_cast<std::byte*>(query.data()), DType::kF32,
                              {rows, shape_.heads, shape_.dim});
    result.out = TensorView(reinterpret_cast<std::byte*>(out.data()), DType::kF32,
                            {rows, shape_.heads, shape_.dim});
    result.keys = keys_;
    result.values = values_;
    result.kv_heads = shape_.kv_heads;
    result.scale = scale();
    return result;
  }
  std::span<const std::int32_t> blocks() const { return blocks_; }

  // The rows of each range of `query` [positions, heads, dim], one slice each, one after the other.
  std::vector<float> attend(const std::vector<float>& query, std::span<const Range> ranges) {
    const auto row_size = static_cast<std::size_t>(shape_.heads * shape_.dim);
    std::vector<float> rows;
    std::vector<AttentionSlice> slices;
    for (const Range& range : ranges) {
      slices.push_back(
          {static_cast<std::int32_t>(rows.size() / row_size), range.count, range.first, blocks_});
      const auto begin = query.begin() + range.first * shape_.heads * shape_.dim;
      rows.insert(rows.end(), begin, begin + range.count * shape_.heads * shape_.dim);
    }
    std::vector<float> out(rows.size());
    AttentionArguments arguments =
        this->arguments(rows, out, static_cast<std::int64_t>(rows.size() / row_size));
    arguments.slices = slices;
    device_->ops().attention(arguments);
    return out;
  }
  std::vector<float> attend(const std::vector<float>& query, int first, int count) {
    const Range range{first, count};
    return attend(query, {&range, 1});
  }

  // The bytes of one plane.
  std::span<const std::byte> keys() const { return bytes_of(keys_); }
  std::span<const std::byte> values() const { return bytes_of(values_); }

  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.dim)); }
  DType dtype() const { return device_->cache_dtype(); }

 private:
  static std::span<const std::byte> bytes_of(const CachePlane& plane) {
    return {plane.data, static_cast<std::size_t>(plane.block_count * plane.block_bytes())};
  }

  Shape shape_;
  int positions_;
  std::unique_ptr<Device> device_;
  std::vector<std::shared_ptr<std::byte>> memory_;
  CachePlane keys_;
  CachePlane values_;
  std::vector<std::int32_t> blocks_;
};

struct Inputs {
  Inputs(Shape shape, int positions)
      : query(random_floats(std::int64_t{positions} * shape.heads * shape.dim, 1)),
        keys(random_floats(std::int64_t{positions} * shape.kv_heads * shape.dim, 2)),
        values(random_floats(std::int64_t{positions} * shape.kv_heads * shape.dim, 3)) {}
  std::vector<float> query;
  std::vector<float> keys;
  std::vector<float> values;
};

// A head as a cache of `dtype` holds it.
std::vector<double> rounded(std::span<const float> head, DType dtype) {
  float largest = 0.0F;
  for (const float x : head) largest = std::max(largest, std::fabs(x));
  std::vector<double> out;
  for (const float x : head) {
    if (dtype == DType::kI8) {
      out.push_back(std::nearbyint(static_cast<double>(x * (127.0F / largest))) *
                    static_cast<double>(largest) / 127.0);
    } else {
      out.push_back(static_cast<double>(dtype == DType::kF32 ? x : bf16_to_f32(f32_to_bf16(x))));
    }
  }
  return out;
}

// The definition, in double, over a cache of `dtype`; INT8 queries are rounded as keys are.
std::vector<double> expected_row(const Inputs& in, Shape shape, int row, int head, DType dtype,
                                 float scale) {
  const int kv_head = head / (shape.heads / shape.kv_heads);
  const auto dim = static_cast<std::size_t>(shape.dim);
  const auto head_of = [&](const std::vector<float>& data, int index) {
    return std::span(data).subspan(static_cast<std::size_t>(index) * dim, dim);
  };
  const auto query = rounded(head_of(in.query, row * shape.heads + head),
                             dtype == DType::kI8 ? DType::kI8 : DType::kF32);
  std::vector<double> scores;
  for (int p = 0; p <= row; ++p) {
    const auto key = rounded(head_of(in.keys, p * shape.kv_heads + kv_head), dtype);
    const double dot = std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
    scores.push_back(dot * static_cast<double>(scale));
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double total = 0.0;
  for (const double score : scores) total += std::exp(score - max);
  std::vector<double> out(dim, 0.0);
  for (int p = 0; p <= row; ++p) {
    const auto value = rounded(head_of(in.values, p * shape.kv_heads + kv_head), dtype);
    const double weight = std::exp(scores[static_cast<std::size_t>(p)] - max) / total;
    for (std::size_t i = 0; i < dim; ++i) out[i] += weight * value[i];
  }
  return out;
}

class Attention : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cpu, Attention, testing::ValuesIn(cpu_kernel_names()),
                         [](const auto& table) { return table.param; });

// Rounding a query to BF16 moves a score by at most 2^-9 sum |q k| scale, here below 2^-9 * 64 / 8
// (|q|, |k| ~ 1, dim <= 128): a factor of 1.02 on a weight. Rounding weights adds 2^-9. Values are
// below 5, so 0.1 bounds the worst row; a typical one is a tenth of that, which the mean asserts.
constexpr double kBf16Bound = 0.1;
constexpr double kBf16MeanBound = 0.005;
// (dim + 256 + 8) float roundings of terms that sum to at most 5.
constexpr double kF32Bound = 400 * 0x1p-24 * 5;
// Scores of an INT8 cache round like F32. A weight times its value's scale is off by half of
// 1 / 32639 of the largest, times a code of at most 127: 256 of them make 256 / (2 * 32639) of the
// largest value, which is below 5, where weights sum to 1 at least. They are off to both sides.
constexpr double kInt8Bound = 256.0 / (2 * 32639) * 5 + kF32Bound;
constexpr double kInt8MeanBound = kInt8Bound / 16;

void check_rows(const std::string& table, Arithmetic arithmetic, Shape shape, int positions,
                bool mark_values) {
  Inputs in(shape, positions);
  Cache cache(table, arithmetic, 2, shape, positions, mark_values);
  const double bound = cache.dtype() == DType::kF32    ? kF32Bound
                       : cache.dtype() == DType::kBF16 ? kBf16Bound
                                                       : kInt8Bound;
  cache.store(in.keys, in.values, 0, positions);
  const auto out = cache.attend(in.query, 0, positions);
  double error_sum = 0.0;
  std::int64_t count = 0;
  for (int row = 0; row < positions; row += 1 + row / 8) {
    for (int head = 0; head < shape.heads; ++head) {
      const auto expected = expected_row(in, shape, row, head, cache.dtype(), cache.scale());
      for (int i = 0; i < shape.dim; ++i) {
        const float actual =
            out[static_cast<std::size_t>((row * shape.heads + head) * shape.dim + i)];
        const double error =
            std::fabs(static_cast<double>(actual) - expected[static_cast<std::size_t>(i)]);
        ASSERT_LE(error, bound) << "row " << row << " head " << head << " element " << i;
        error_sum += error;
        ++count;
      }
    }
  }
  const double mean = error_sum / static_cast<double>(count);
  EXPECT_LE(mean, cache.dtype() == DType::kI8 ? kInt8MeanBound : kBf16MeanBound);
}

TEST_P(Attention, MatchesItsDefinition) {
  for (const Arithmetic& arithmetic : kArithmetics) {
    check_rows(GetParam(), arithmetic, {6, 2, 64, 32}, 300, true);
    check_rows(GetParam(), arithmetic, {9, 3, 64, 16}, 40, true);
    check_rows(GetParam(), arithmetic, {12, 2, 128, 64}, 70, true);
    check_rows(GetParam(), arithmetic, {4, 4, 16, 32}, 33, true);
    check_rows(GetParam(), arithmetic, {2, 1, 24, 16}, 33, true);
    check_rows(GetParam(), arithmetic, {40, 1, 32, 32}, 33, true);
  }
}

TEST_P(Attention, ReadsCachesOfOddGeometry) {
  for (const Arithmetic& arithmetic : kArithmetics) {
    check_rows(GetParam(), arithmetic, {4, 2, 16, 32}, 50, false);
    check_rows(GetParam(), arithmetic, {4, 2, 16, 4}, 50, true);
    check_rows(GetParam(), arithmetic, {3, 3, 5, 16}, 300, true);
    check_rows(GetParam(), arithmetic, {2, 1, 7, 3}, 50, true);
  }
}

// A prompt in one piece against the same prompt in chunks, each written before it is read; whatever
// lies behind a row, NaN included, must not reach it.
TEST_P(Attention, GivesARowTheSameBitsInEveryChunking) {
  const Shape shape{6, 2, 64, 32};
  const int positions = 600;
  Inputs in(shape, positions);
  const std::int64_t row_size = shape.heads * shape.dim;
  for (const Arithmetic& arithmetic : kArithmetics) {
    Cache whole(GetParam(), arithmetic, 1, shape, positions);
    whole.store(in.keys, in.values, 0, positions);
    const auto expected = whole.attend(in.query, 0, positions);
    for (const int chunk : {1, 7, 37, 256}) {
      Cache chunked(GetParam(), arithmetic, 2, shape, positions);
      const int start = chunk == 1 ? 590 : 0;
      if (start > 0) chunked.store(in.keys, in.values, 0, start);
      for (int first = start; first < positions; first += chunk) {
        const int count = std::min(chunk, positions - first);
        chunked.store(in.keys, in.values, first, count);
        const auto out = chunked.attend(in.query, first, count);
        ASSERT_EQ(
            std::memcmp(out.data(), expected.data() + first * row_size, out.size() * sizeof(float)),
            0)
            << "chunk " << chunk << " at " << first;
      }
    }
  }
}

// Scratch comes with whatever the last operation left there.
TEST_P(Attention, DoesNotReadStaleScratch) {
  const Shape shape{3, 3, 5, 16};
  const int positions = 300;
  Inputs in(shape, positions);
  for (const Arithmetic& arithmetic : kArithmetics) {
    Cache cache(GetParam(), arithmetic, 1, shape, positions);
    cache.store(in.keys, in.values, 0, positions);
    const auto expected = cache.attend(in.query, 0, positions);
    auto out = expected;
    const AttentionSlice slice{0, positions, 0, cache.blocks()};
    AttentionArguments arguments = cache.arguments(in.query, out, positions);
    arguments.slices = {&slice, 1};
    for (const CpuKernels* kernels : supported_kernels()) {
      if (GetParam() != kernels->name) continue;
      AttentionRun run(*kernels, arguments);
      std::vector<AttentionItem> items;
      run.plan(1, &items);
      Scratch scratch;
      constexpr std::int64_t kBytes = std::int64_t{1} << 20;
      std::memset(scratch.get(kBytes), 0xFF, kBytes);
      for (const AttentionItem& item : items) run.run(item, nullptr, scratch);
    }
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0);
  }
}

TEST_P(Attention, GivesARowTheSameBitsInAnyCompany) {
  const Shape shape{6, 2, 64, 32};
  const int positions = 600;
  Inputs in(shape, positions);
  const std::size_t row_size = static_cast<std::size_t>(shape.heads * shape.dim);
  for (const Arithmetic& arithmetic : kArithmetics) {
    Cache cache(GetParam(), arithmetic, 2, shape, positions);
    cache.store(in.keys, in.values, 0, positions);
    const Cache::Range ranges[] = {{599, 1}, {100, 37}, {3, 1}, {250, 12}, {511, 1}, {0, 5}};
    const auto together = cache.attend(in.query, ranges);
    const float* next = together.data();
    for (const Cache::Range& range : ranges) {
      const auto alone = cache.attend(in.query, range.first, range.count);
      ASSERT_EQ(std::memcmp(next, alone.data(), alone.size() * sizeof(float)), 0) << range.first;
      next += static_cast<std::size_t>(range.count) * row_size;
    }
  }
}

// One long context beside many short ones is cut into splits, which several threads compute; the
// others stay whole.
TEST_P(Attention, SharesALongContextAmongThreadsWithTheSameBits) {
  const Shape shape{4, 2, 16, 32};
  const int positions = 4200;
  Inputs in(shape, positions);
  std::vector<Cache::Range> ranges;
  for (int i = 0; i < 12; ++i) ranges.push_back({40 + 30 * i, 1});
  ranges.push_back({positions - 1, 1});
  for (const Arithmetic& arithmetic : kArithmetics) {
    Cache one(GetParam(), arithmetic, 1, shape, positions);
    Cache three(GetParam(), arithmetic, 3, shape, positions);
    one.store(in.keys, in.values, 0, positions);
    three.store(in.keys, in.values, 0, positions);
    const auto expected = one.attend(in.query, ranges);
    const auto shared = three.attend(in.query, ranges);
    ASSERT_EQ(std::memcmp(shared.data(), expected.data(), expected.size() * sizeof(float)), 0);
  }
}

TEST_P(Attention, KeepsNonFiniteEntriesFromEarlierRows) {
  const Shape shape{6, 2, 64, 32};
  const int positions = 40;
  Inputs in(shape, positions);
  for (const Arithmetic& arithmetic : kArithmetics) {
    Cache clean(GetParam(), arithmetic, 1, shape, positions);
    clean.store(in.keys, in.values, 0, positions);
    const auto expected = clean.attend(in.query, 0, positions);
    Inputs bad = in;
    for (int i = 0; i < 2 * 64; ++i) {
      bad.keys[static_cast<std::size_t>(25 * 2 * 64 + i)] = NAN;
      bad.values[static_cast<std::size_t>(25 * 2 * 64 + i)] = INFINITY;
    }
    Cache dirty(GetParam(), arithmetic, 1, shape, positions);
    dirty.store(bad.keys, bad.values, 0, positions);
    const auto out = dirty.attend(in.query, 0, positions);
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), 25 * 6 * 64 * sizeof(float)), 0);
    for (std::size_t i = 25 * 6 * 64; i < out.size(); ++i) ASSERT_FALSE(std::isfinite(out[i]));
  }
}

// --- INT8 caches ---------------------------------------------------------------------------------

constexpr Arithmetic kInt8{ComputeType::kBFloat16, DType::kI8};

// Heads of each length, plain ones and such as have nothing to divide by, or too much of it.
std::vector<std::vector<float>> adversarial_heads(int size) {
  const auto random = random_floats(size, 7);
  std::vector<std::vector<float>> heads;
  for (const float factor : {1.0F, 1e-3F, 1e30F, 0x1p-111F, 0x1p-140F, 0.0F}) {
    heads.emplace_back(random);
    for (float& x : heads.back()) x *= factor;
  }
  for (const float odd : {NAN, INFINITY, -INFINITY, 3.4028235e38F, -0.0F, 0x1p-149F}) {
    heads.emplace_back(random)[static_cast<std::size_t>(size - 1)] = odd;
    heads.emplace_back(static_cast<std::size_t>(size), odd);
  }
  // Ties: halves of a step, which go to the even neighbour.
  auto& ties = heads.emplace_back();
  for (int i = 0; i < size; ++i) ties.push_back(static_cast<float>(i % 255 - 127) + 0.5F);
  ties.front() = 127.0F;
  return heads;
}

TEST(Int8Cache, RoundsHeadsToTheSameBitsInEveryTable) {
  for (int size = 1; size <= 130; size += size < 36 ? 1 : 31) {
    for (const std::vector<float>& head : adversarial_heads(size)) {
      std::vector<std::int8_t> expected(static_cast<std::size_t>(size) + 16, 99);
      const float scale = reference_kernels().quantize_head(head.data(), size, expected.data());
      for (const CpuKernels* table : supported_kernels()) {
        std::vector<std::int8_t> codes(expected.size(), 99);
        const float got = table->quantize_head(head.data(), size, codes.data());
        ASSERT_EQ(std::memcmp(&got, &scale, sizeof(got)), 0) << table->name << " " << size;
        ASSERT_EQ(codes, expected) << table->name << " " << size << " of " << head.front();
      }
    }
  }
}

TEST(Int8Cache, IsOffByHalfAStepOfEachHead) {
  for (const std::vector<float>& head : adversarial_heads(64)) {
    std::int8_t codes[64];
    const float scale = reference_kernels().quantize_head(head.data(), 64, codes);
    const bool finite =
        std::all_of(head.begin(), head.end(), [](float x) { return std::isfinite(x); });
    EXPECT_EQ(std::isnan(scale), !finite);
    if (!finite) continue;
    float largest = 0.0F;
    for (const float x : head) largest = std::max(largest, std::fabs(x));
    // Half a step, what rounding the scale and the quotient adds, and what counts as zero.
    const double bound = static_cast<double>(largest) / 127 * (0.5 + 127 * 0x1p-22) + 0x1p-110;
    for (std::size_t i = 0; i < 64; ++i) {
      const double back = static_cast<double>(codes[i]) * static_cast<double>(scale);
      EXPECT_LE(std::fabs(back - static_cast<double>(head[i])), bound) << largest;
    }
  }
}

TEST_P(Attention, StoresTheSameInt8BlocksAsTheReference) {
  for (const Shape shape : {Shape{6, 2, 64, 32}, Shape{3, 3, 5, 16}, Shape{2, 1, 7, 3}}) {
    Inputs in(shape, 50);
    Cache expected("reference", kInt8, 1, shape, 50);
    Cache cache(GetParam(), kInt8, 2, shape, 50);
    expected.store(in.keys, in.values, 0, 50);
    cache.store(in.keys, in.values, 0, 50);
    EXPECT_TRUE(std::ranges::equal(cache.keys(), expected.keys()));
    EXPECT_TRUE(std::ranges::equal(cache.values(), expected.values()));
  }
}

// What the rounding of queries, keys and values does together. An element of a key is off by up to
// max|k| / 254, evenly spread, so a score by scale sqrt(d) |q| max|k| / (254 sqrt(3)) or .009 (with
// max|k| below 4), and as much again for the query: weights change by 1.3 %, to both sides, of
// values around .8; values themselves by up to 4 / 254, .008 on average where only one counts.
TEST_P(Attention, StaysNearTheUnroundedCacheWithInt8) {
  const Shape shape{6, 2, 64, 32};
  const int positions = 300;
  Inputs in(shape, positions);
  Cache cache(GetParam(), kInt8, 2, shape, positions);
  cache.store(in.keys, in.values, 0, positions);
  const auto out = cache.attend(in.query, 0, positions);
  double error = 0.0;
  std::int64_t count = 0;
  for (int row = 0; row < positions; row += 23) {
    for (int head = 0; head < shape.heads; ++head) {
      const auto expected = expected_row(in, shape, row, head, DType::kF32, cache.scale());
      for (std::size_t i = 0; i < expected.size(); ++i, ++count) {
        const auto at = static_cast<std::size_t>((row * shape.heads + head) * shape.dim) + i;
        error += std::fabs(static_cast<double>(out[at]) - expected[i]);
      }
    }
  }
  EXPECT_LE(error / static_cast<double>(count), 0.01);
  EXPECT_GE(error / static_cast<double>(count), 1e-5);  // it was rounded at all
}

// Every table against the reference, which does not round weights.
TEST_P(Attention, TakesExtremeValuesOfAnInt8CacheAsTheReferenceDoes) {
  const Shape shape{6, 2, 64, 32};
  const int positions = 290;
  struct Factors {
    float query;
    float keys;
    float values;
  };
  for (const Factors by :
       {Factors{1, 1, 0}, Factors{0, 1, 1}, Factors{1, 0, 1}, Factors{1e-30F, 1e30F, 1},
        Factors{1e30F, 1e-30F, 1}, Factors{1, 1, 1e34F}, Factors{1, 1, 1e-39F}, Factors{8, 4, 1}}) {
    Inputs in(shape, positions);
    for (float& x : in.query) x *= by.query;
    for (float& x : in.keys) x *= by.keys;
    for (float& x : in.values) x *= by.values;
    for (int i = 0; i < shape.kv_heads * shape.dim; ++i) {
      in.values[static_cast<std::size_t>(i)] *= 1e-3F;  // the first position attracts, as they do
      in.keys[static_cast<std::size_t>(i)] *= 2.0F;
    }
    Cache reference("reference", kInt8, 1, shape, positions);
    Cache cache(GetParam(), kInt8, 1, shape, positions);
    reference.store(in.keys, in.values, 0, positions);
    cache.store(in.keys, in.values, 0, positions);
    const auto expected = reference.attend(in.query, 280, 10);
    const auto out = cache.attend(in.query, 280, 10);
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], expected[i], kInt8Bound * static_cast<double>(by.values) + 0x1p-97)
          << by.query << " " << by.keys << " " << by.values;
    }
  }
}

}  // namespace
}  // namespace kun
