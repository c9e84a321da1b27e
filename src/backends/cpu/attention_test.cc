// Attention through Ops: the right values from any cache geometry, and a row's bits unchanged by
// its neighbours, the chunks of its prompt, the length of other sequences and the thread count.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

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

// One device with a cache, whose blocks start as NaN: nothing may read what was not written.
class Cache {
 public:
  Cache(const std::string& kernels, ComputeType compute, int threads, Shape shape, int positions,
        bool mark_values = true)
      : shape_(shape), positions_(positions) {
    auto opened =
        open_cpu_device({.thread_count = threads, .kernels = kernels, .compute = compute});
    CHECK(opened.has_value());
    device_ = *std::move(opened);
    const int blocks = (positions + shape.tokens_per_block - 1) / shape.tokens_per_block;
    for (CachePlane* plane : {&keys_, &values_}) {
      plane->dtype = device_->cache_dtype();
      plane->width = shape.kv_heads * shape.dim;
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

  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.dim)); }
  DType dtype() const { return device_->cache_dtype(); }

 private:
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

double rounded(float value, DType dtype) {
  return static_cast<double>(dtype == DType::kF32 ? value : bf16_to_f32(f32_to_bf16(value)));
}

// The definition, in double, over a cache of `dtype`.
std::vector<double> expected_row(const Inputs& in, Shape shape, int row, int head, DType dtype,
                                 float scale) {
  const int kv_head = head / (shape.heads / shape.kv_heads);
  std::vector<double> weights;
  double total = 0.0;
  const float* q = in.query.data() + (row * shape.heads + head) * shape.dim;
  const auto at = [&](const std::vector<float>& data, int position, int i) {
    const int index = (position * shape.kv_heads + kv_head) * shape.dim + i;
    return rounded(data[static_cast<std::size_t>(index)], dtype);
  };
  for (int p = 0; p <= row; ++p) {
    double score = 0.0;
    for (int i = 0; i < shape.dim; ++i) score += static_cast<double>(q[i]) * at(in.keys, p, i);
    weights.push_back(std::exp(score * static_cast<double>(scale)));
    total += weights.back();
  }
  std::vector<double> out(static_cast<std::size_t>(shape.dim), 0.0);
  for (int p = 0; p <= row; ++p) {
    for (int i = 0; i < shape.dim; ++i) {
      out[static_cast<std::size_t>(i)] +=
          weights[static_cast<std::size_t>(p)] / total * at(in.values, p, i);
    }
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

void check_rows(const std::string& table, ComputeType compute, Shape shape, int positions,
                bool mark_values) {
  Inputs in(shape, positions);
  Cache cache(table, compute, 2, shape, positions, mark_values);
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
        ASSERT_LE(error, compute == ComputeType::kFloat32 ? kF32Bound : kBf16Bound)
            << "row " << row << " head " << head << " element " << i;
        error_sum += error;
        ++count;
      }
    }
  }
  EXPECT_LE(error_sum / static_cast<double>(count), kBf16MeanBound);
}

TEST_P(Attention, MatchesItsDefinition) {
  for (const ComputeType compute : {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    check_rows(GetParam(), compute, {6, 2, 64, 32}, 300, true);
    check_rows(GetParam(), compute, {9, 3, 64, 16}, 40, true);
    check_rows(GetParam(), compute, {12, 2, 128, 64}, 70, true);
    check_rows(GetParam(), compute, {4, 4, 16, 32}, 33, true);
    check_rows(GetParam(), compute, {2, 1, 24, 16}, 33, true);
    check_rows(GetParam(), compute, {40, 1, 32, 32}, 33, true);
  }
}

TEST_P(Attention, ReadsCachesOfOddGeometry) {
  for (const ComputeType compute : {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    check_rows(GetParam(), compute, {4, 2, 16, 32}, 50, false);
    check_rows(GetParam(), compute, {4, 2, 16, 4}, 50, true);
    check_rows(GetParam(), compute, {3, 3, 5, 16}, 300, true);
    check_rows(GetParam(), compute, {2, 1, 7, 3}, 50, true);
  }
}

// A prompt in one piece against the same prompt in chunks, each written before it is read; whatever
// lies behind a row, NaN included, must not reach it.
TEST_P(Attention, GivesARowTheSameBitsInEveryChunking) {
  const Shape shape{6, 2, 64, 32};
  const int positions = 600;
  Inputs in(shape, positions);
  const std::int64_t row_size = shape.heads * shape.dim;
  for (const ComputeType compute : {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    Cache whole(GetParam(), compute, 1, shape, positions);
    whole.store(in.keys, in.values, 0, positions);
    const auto expected = whole.attend(in.query, 0, positions);
    for (const int chunk : {1, 7, 37, 256}) {
      Cache chunked(GetParam(), compute, 2, shape, positions);
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
  for (const ComputeType compute : {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    Cache cache(GetParam(), compute, 1, shape, positions);
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
  for (const ComputeType compute : {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    Cache cache(GetParam(), compute, 2, shape, positions);
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
  for (const ComputeType compute : {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    Cache one(GetParam(), compute, 1, shape, positions);
    Cache three(GetParam(), compute, 3, shape, positions);
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
  for (const ComputeType compute : {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    Cache clean(GetParam(), compute, 1, shape, positions);
    clean.store(in.keys, in.values, 0, positions);
    const auto expected = clean.attend(in.query, 0, positions);
    Inputs bad = in;
    for (int i = 0; i < 2 * 64; ++i) {
      bad.keys[static_cast<std::size_t>(25 * 2 * 64 + i)] = NAN;
      bad.values[static_cast<std::size_t>(25 * 2 * 64 + i)] = INFINITY;
    }
    Cache dirty(GetParam(), compute, 1, shape, positions);
    dirty.store(bad.keys, bad.values, 0, positions);
    const auto out = dirty.attend(in.query, 0, positions);
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), 25 * 6 * 64 * sizeof(float)), 0);
    for (std::size_t i = 25 * 6 * 64; i < out.size(); ++i) ASSERT_FALSE(std::isfinite(out[i]));
  }
}

}  // namespace
}  // namespace kun
