// Attention over one split of the cache in plain C++ with double sums.
#include <cmath>
#include <cstring>

#include "backends/cpu/reference/reference.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

struct F32Cache {
  static double key(const std::byte* group, int position, int i) {
    float value = 0.0F;
    std::memcpy(&value, group + (i * kGroupPositions + position) * 4, 4);
    return static_cast<double>(value);
  }
  static double value(const std::byte* group, std::int64_t stride, int position, int i) {
    float value = 0.0F;
    std::memcpy(&value, group + (position * stride + i) * 4, 4);
    return static_cast<double>(value);
  }
};

struct Bf16Cache {
  static double load(const std::byte* data) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, data, 2);
    return static_cast<double>(bf16_to_f32(bits));
  }
  static double key(const std::byte* group, int position, int i) {
    return load(group + ((i / 2 * kGroupPositions + position) * 2 + i % 2) * 2);
  }
  static double value(const std::byte* group, std::int64_t stride, int position, int i) {
    return load(group + ((position / 2 * stride + i) * 2 + position % 2) * 2);
  }
};

template <class Cache>
void attend(const AttentionTile& tile, int query) {
  const int count = tile.counts[query];
  const float* q = static_cast<const float*>(tile.queries) + query * tile.dim;
  float* scores = tile.scores + query * kSplitPositions;
  float max = -INFINITY;
  for (int p = 0; p < count; ++p) {
    double sum = 0.0;
    for (int i = 0; i < tile.dim; ++i) {
      sum += static_cast<double>(q[i]) *
             Cache::key(tile.keys[p / kGroupPositions], p % kGroupPositions, i);
    }
    scores[p] = static_cast<float>(sum * static_cast<double>(tile.scale));
    max = std::fmax(max, scores[p]);
  }
  double total = 0.0;
  for (int p = 0; p < count; ++p) {
    scores[p] = std::exp(scores[p] - max);
    total += static_cast<double>(scores[p]);
  }
  for (int i = 0; i < tile.value_dim; ++i) {
    double sum = 0.0;
    for (int p = 0; p < count; ++p) {
      sum +=
          static_cast<double>(scores[p]) *
          Cache::value(tile.values[p / kGroupPositions], tile.value_stride, p % kGroupPositions, i);
    }
    tile.out[query * tile.value_dim + i] = static_cast<float>(sum);
  }
  tile.max[query] = max;
  tile.sum[query] = static_cast<float>(total);
}

template <class Cache>
void attention(const AttentionTile& tile) {
  for (int query = 0; query < tile.query_count; ++query) attend<Cache>(tile, query);
}

void fold(float* max, float* sum, float* out, float split_max, float split_sum,
          const float* split_out, int dim) {
  const float joint = std::fmax(*max, split_max);
  const float old_weight = std::exp(*max - joint);
  const float new_weight = std::exp(split_max - joint);
  *max = joint;
  *sum = *sum * old_weight + split_sum * new_weight;
  for (int i = 0; i < dim; ++i) out[i] = out[i] * old_weight + split_out[i] * new_weight;
}

}  // namespace

void add_reference_attention(CpuKernels* table) {
  table->attention_f32 = attention<F32Cache>;
  table->attention_bf16 = attention<Bf16Cache>;
  table->attention_fold = fold;
}

}  // namespace kun
