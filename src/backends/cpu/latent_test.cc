// Latent attention, the indexer's choice and compression on every kernel table, against plain
// double arithmetic; and what must be equal to the last bit whoever computes it, and beside whom.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/select.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

using Floats = std::vector<float>;

Floats random_floats(std::mt19937& random, std::int64_t count, float deviation = 1.0F) {
  std::normal_distribution<float> normal(0.0F, deviation);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

TensorView view(Floats& data, std::initializer_list<std::int64_t> shape) {
  return {reinterpret_cast<std::byte*>(data.data()), DType::kF32, shape};
}

TensorView integer_view(std::vector<std::int32_t>& data,
                        std::initializer_list<std::int64_t> shape) {
  return {reinterpret_cast<std::byte*>(data.data()), DType::kI32, shape};
}

std::unique_ptr<Device> open(const std::string& kernels, ComputeType compute, int threads = 2) {
  auto device = open_cpu_device({.thread_count = threads, .kernels = kernels, .compute = compute});
  CHECK(device);
  return *std::move(device);
}

// The rows of a plane with blocks in no order, and what a row that is read back looks like.
struct Plane {
  Plane(Ops& ops, Floats& rows, int width, int block_length, DType dtype, CacheRole role)
      : width_(width), count(std::ssize(rows) / width) {
    const auto block_count = static_cast<std::int32_t>((count + block_length - 1) / block_length);
    blocks.resize(static_cast<std::size_t>(block_count));
    std::iota(blocks.rbegin(), blocks.rend(), 0);
    plane = {.dtype = dtype,
             .role = role,
             .width = width,
             .tokens_per_block = block_length,
             .block_count = block_count};
    memory = ops.allocate(plane.block_bytes() * block_count);
    plane.data = memory.get();
    std::vector<std::int32_t> slots;
    for (std::int64_t i = 0; i < count; ++i) {
      slots.push_back(blocks[static_cast<std::size_t>(i / block_length)] * block_length +
                      static_cast<std::int32_t>(i % block_length));
    }
    ops.store_cache(view(rows, {count, width}), slots, plane);
    stored = rows;
    if (dtype == DType::kBF16) {
      for (float& value : stored) value = bf16_to_f32(f32_to_bf16(value));
    }
  }

  const float* row(std::int64_t entry) const { return stored.data() + entry * width_; }

  int width_;
  std::int64_t count;
  CachePlane plane;
  std::vector<std::int32_t> blocks;
  std::shared_ptr<std::byte> memory;
  Floats stored;
};

// softmax(scale q . entries) entries, with a sink; in double.
Floats attend(const float* query, int dim, int value_dim, const std::vector<const float*>& entries,
              double scale, std::optional<float> sink) {
  std::vector<double> scores;
  double max = sink ? static_cast<double>(*sink) : -INFINITY;
  for (const float* entry : entries) {
    double sum = 0.0;
    for (int i = 0; i < dim; ++i)
      sum += static_cast<double>(query[i]) * static_cast<double>(entry[i]);
    scores.push_back(sum * scale);
    max = std::max(max, scores.back());
  }
  double total = sink ? std::exp(static_cast<double>(*sink) - max) : 0.0;
  std::vector<double> mixed(static_cast<std::size_t>(value_dim), 0.0);
  for (std::size_t e = 0; e < entries.size(); ++e) {
    const double weight = std::exp(scores[e] - max);
    total += weight;
    for (std::size_t i = 0; i < mixed.size(); ++i) {
      mixed[i] += weight * static_cast<double>(entries[e][i]);
    }
  }
  Floats out;
  for (const double value : mixed) out.push_back(static_cast<float>(value / total));
  return out;
}

struct Case {
  std::string kernels;
  ComputeType compute;
};

void PrintTo(const Case& value, std::ostream* out) {
  *out << value.kernels;
}

class Latent : public testing::TestWithParam<Case> {
 protected:
  bool exact() const { return GetParam().compute == ComputeType::kFloat32; }
  DType dtype() const { return exact() ? DType::kF32 : DType::kBF16; }
  // Outputs are means of values of size 1; BF16 rounds values, weights and queries to 2^-9.
  double tolerance() const { return exact() ? 1e-5 : 3e-2; }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& kernels : cpu_kernel_names()) {
    cases.push_back({kernels, ComputeType::kFloat32});
    cases.push_back({kernels, ComputeType::kBFloat16});
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.kernels + (info.param.compute == ComputeType::kFloat32 ? "_exact" : "_fast");
}

INSTANTIATE_TEST_SUITE_P(Kernels, Latent, testing::ValuesIn(all_cases()), case_name);

TEST_P(Latent, AttentionMatchesDoublesOverOneSource) {
  for (const auto& [dim, value_dim, heads, context, rows] :
       {std::tuple{40, 32, 3, 5, 5}, std::tuple{576, 512, 16, 700, 3},
        std::tuple{66, 50, 33, 300, 7}, std::tuple{18, 18, 1, 257, 257}}) {
    std::mt19937 random(5);
    const auto device = open(GetParam().kernels, GetParam().compute);
    Floats entries = random_floats(random, std::int64_t{context} * dim);
    const Plane plane(device->ops(), entries, dim, 32, dtype(), CacheRole::kRows);
    Floats queries = random_floats(random, std::int64_t{rows} * heads * dim);
    Floats out(static_cast<std::size_t>(rows * heads * value_dim));
    const AttentionSlice slice{0, rows, context - rows, plane.blocks};
    LatentSource source;
    source.plane = plane.plane;
    source.slices = {&slice, 1};
    source.first = std::min(3, context - rows);  // the first row sees something
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    device->ops().latent_attention({.query = view(queries, {rows, heads, dim}),
                                    .sources = {&source, 1},
                                    .scale = scale,
                                    .out = view(out, {rows, heads, value_dim})});
    for (int r = 0; r < rows; ++r) {
      std::vector<const float*> seen;
      for (int e = source.first; e <= context - rows + r; ++e) seen.push_back(plane.row(e));
      for (int h = 0; h < heads; ++h) {
        const Floats wanted = attend(queries.data() + (r * heads + h) * dim, dim, value_dim, seen,
                                     static_cast<double>(scale), {});
        for (int i = 0; i < value_dim; ++i) {
          ASSERT_NEAR(out[static_cast<std::size_t>((r * heads + h) * value_dim + i)],
                      wanted[static_cast<std::size_t>(i)], tolerance())
              << dim << ": row " << r << ", head " << h << ", element " << i;
        }
      }
    }
  }
}

// What one row of the next test sees: a window, and chosen entries of a compressed cache.
struct Mixed {
  static constexpr int kDim = 32;
  static constexpr int kHeads = 5;
  static constexpr int kContext = 400;
  static constexpr int kRows = 6;
  static constexpr int kWindow = 20;
  static constexpr int kStride = 4;
  static constexpr int kChosen = 9;

  explicit Mixed(Device& device, DType dtype) : device_(device) {
    std::mt19937 random(11);
    Floats near = random_floats(random, kContext * kDim);
    Floats far = random_floats(random, kContext / kStride * kDim);
    window.emplace(device.ops(), near, kDim, 128, dtype, CacheRole::kRows);
    compressed.emplace(device.ops(), far, kDim, 32, dtype, CacheRole::kRows);
    queries = random_floats(random, kRows * kHeads * kDim);
    sinks = random_floats(random, kHeads);
    chosen.assign(kRows * kChosen, -1);
    for (std::int32_t r = 0; r < kRows; ++r) {
      for (std::int32_t i = 0; i < kChosen - r % 3; ++i) {
        chosen[static_cast<std::size_t>(r * kChosen + i)] = r + 9 * i;
      }
    }
  }

  // Rows [first, first + count) alone.
  Floats run(int first, int count) {
    const AttentionSlice near{0, count, kContext - kRows + first, window->blocks};
    const AttentionSlice far{0, count, kContext - kRows + first, compressed->blocks};
    LatentSource sources[2];
    sources[0].plane = window->plane;
    sources[0].slices = {&near, 1};
    sources[0].window = kWindow;
    sources[1].plane = compressed->plane;
    sources[1].slices = {&far, 1};
    sources[1].stride = kStride;
    sources[1].chosen = integer_view(chosen, {kRows, kChosen}).slice_rows(first, count);
    Floats out(static_cast<std::size_t>(count * kHeads * kDim));
    device_.ops().latent_attention(
        {.query = view(queries, {kRows, kHeads, kDim}).slice_rows(first, count),
         .sources = sources,
         .scale = 0.2F,
         .sinks = view(sinks, {kHeads}),
         .out = view(out, {count, kHeads, kDim})});
    return out;
  }

  Device& device_;
  std::optional<Plane> window;
  std::optional<Plane> compressed;
  Floats queries;
  Floats sinks;
  std::vector<std::int32_t> chosen;
};

TEST_P(Latent, AttentionMatchesDoublesOverAWindowAndChosenEntriesWithSinks) {
  const auto device = open(GetParam().kernels, GetParam().compute);
  Mixed mixed(*device, dtype());
  const Floats out = mixed.run(0, Mixed::kRows);
  for (int r = 0; r < Mixed::kRows; ++r) {
    std::vector<const float*> seen;
    const int position = Mixed::kContext - Mixed::kRows + r;
    for (int p = position - Mixed::kWindow + 1; p <= position; ++p)
      seen.push_back(mixed.window->row(p));
    for (int i = 0; i < Mixed::kChosen; ++i) {
      const std::int32_t entry = mixed.chosen[static_cast<std::size_t>(r * Mixed::kChosen + i)];
      if (entry >= 0) seen.push_back(mixed.compressed->row(entry));
    }
    for (int h = 0; h < Mixed::kHeads; ++h) {
      const int at = (r * Mixed::kHeads + h) * Mixed::kDim;
      const Floats wanted = attend(mixed.queries.data() + at, Mixed::kDim, Mixed::kDim, seen, 0.2,
                                   mixed.sinks[static_cast<std::size_t>(h)]);
      for (int i = 0; i < Mixed::kDim; ++i) {
        ASSERT_NEAR(out[static_cast<std::size_t>(at + i)], wanted[static_cast<std::size_t>(i)],
                    tolerance())
            << "row " << r << ", head " << h;
      }
    }
  }
}

TEST_P(Latent, ARowIsTheSameAloneInCompanyAndOnMoreThreads) {
  const auto two = open(GetParam().kernels, GetParam().compute, 2);
  const auto seven = open(GetParam().kernels, GetParam().compute, 7);
  Mixed mixed(*two, dtype());
  Mixed many(*seven, dtype());
  const Floats together = mixed.run(0, Mixed::kRows);
  EXPECT_EQ(together, many.run(0, Mixed::kRows));
  for (int r = 0; r < Mixed::kRows; ++r) {
    const Floats alone = mixed.run(r, 1);
    const auto start = together.begin() + r * std::ssize(alone);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), start)) << "row " << r;
  }
}

TEST_P(Latent, ChoosesTheBestEntriesInAscendingOrderAndLowerOnesOfEqual) {
  for (const int block_length : {32, 64, 5}) {
    constexpr int kHeads = 7;
    constexpr int kDim = 16;
    constexpr int kEntries = 150;
    constexpr int kRows = 3;
    constexpr int kTop = 40;
    constexpr int kStride = 2;
    const int skipped = block_length == 64 ? 3 : 0;  // entries that nobody sees
    std::mt19937 random(2);
    const auto device = open(GetParam().kernels, GetParam().compute);
    Floats keys = random_floats(random, kEntries * kDim);
    std::fill_n(keys.begin() + 10 * kDim, 30 * kDim, 0.0F);  // scores of 0: many are equal
    const Plane plane(device->ops(), keys, kDim, block_length, dtype(), CacheRole::kIndexKeys);
    Floats queries = random_floats(random, kRows * kHeads * kDim);
    for (float& value : queries) value = bf16_to_f32(f32_to_bf16(value));
    Floats weights = random_floats(random, kRows * kHeads);
    std::vector<std::int32_t> chosen(kRows * kTop);
    // The first row sees fewer than it may have, where none are skipped.
    const int first_position = 2 * kTop - 3 + 8 * skipped;
    const AttentionSlice slice{0, kRows, first_position, plane.blocks};
    device->ops().choose_entries({.query = view(queries, {kRows, kHeads, kDim}),
                                  .weights = view(weights, {kRows, kHeads}),
                                  .keys = plane.plane,
                                  .slices = {&slice, 1},
                                  .stride = kStride,
                                  .first = skipped,
                                  .chosen = integer_view(chosen, {kRows, kTop})});
    for (int r = 0; r < kRows; ++r) {
      const int visible = (first_position + r + 1) / kStride;
      std::vector<std::pair<double, int>> scores;
      for (int e = skipped; e < visible; ++e) {
        double score = 0.0;
        for (int h = 0; h < kHeads; ++h) {
          double product = 0.0;
          for (int i = 0; i < kDim; ++i) {
            product += static_cast<double>(
                           queries[static_cast<std::size_t>((r * kHeads + h) * kDim + i)]) *
                       static_cast<double>(plane.row(e)[i]);
          }
          score += static_cast<double>(weights[static_cast<std::size_t>(r * kHeads + h)]) *
                   std::max(product, 0.0);
        }
        scores.emplace_back(-score, e);
      }
      std::sort(scores.begin(), scores.end());
      std::vector<std::int32_t> wanted;
      for (int i = 0; i < std::min(visible - skipped, kTop); ++i) {
        wanted.push_back(scores[static_cast<std::size_t>(i)].second);
      }
      std::sort(wanted.begin(), wanted.end());
      wanted.resize(kTop, -1);
      const std::vector<std::int32_t> got(chosen.begin() + r * kTop,
                                          chosen.begin() + (r + 1) * kTop);
      EXPECT_EQ(got, wanted) << "row " << r << ", blocks of " << block_length;
    }
  }
}

TEST(LatentKernels, GatherAsTheReferenceDoes) {
  const std::vector<const CpuKernels*> tables = supported_kernels();
  std::mt19937 random(1);
  for (const int width : {2, 16, 18, 34, 64, 576}) {
    std::vector<std::vector<std::uint16_t>> rows(16);
    const std::byte* pointers[16];
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (int i = 0; i < width; ++i) rows[r].push_back(static_cast<std::uint16_t>(random()));
      pointers[r] = reinterpret_cast<const std::byte*>(rows[r].data());
    }
    const auto run = [&](const CpuKernels& table) {
      std::vector<std::byte> out(static_cast<std::size_t>(width) * 16 * 2 * 2 + 64 * 8);
      table.gather_keys(pointers, width / 2, out.data());
      table.gather_values(pointers, width, width + 6, out.data() + width * 16 * 2);
      return out;
    };
    for (const CpuKernels* table : tables) {
      EXPECT_EQ(run(*table), run(reference_kernels())) << table->name << ", width " << width;
    }
  }
}

TEST(LatentKernels, AddScaledRowsAsTheReferenceDoes) {
  std::mt19937 random(1);
  for (const std::int64_t size : {1, 7, 16, 33, 2048}) {
    const Floats in = random_floats(random, size);
    const Floats start = random_floats(random, size);
    for (const CpuKernels* table : supported_kernels()) {
      Floats out = start;
      table->add_scaled(0.3F, in.data(), out.data(), size);
      for (std::size_t i = 0; i < out.size(); ++i) {
        EXPECT_NEAR(out[i], start[i] + 0.3F * in[i], 1e-6F) << table->name;
      }
    }
  }
}

}  // namespace
}  // namespace kun
