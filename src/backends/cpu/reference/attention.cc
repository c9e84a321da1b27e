// Attention over one split of the cache in plain C++ with double sums.
#include <cmath>
#include <cstring>

#include "backends/cpu/reference/reference.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

float load_float(const std::byte* data) {
  float value = 0.0F;
  std::memcpy(&value, data, 4);
  return value;
}

struct F32Elements {
  static double key(const std::byte* group, int position, int i) {
    return static_cast<double>(load_float(group + (i * kGroupPositions + position) * 4));
  }
  static double value(const std::byte* group, std::int64_t stride, int position, int i) {
    return static_cast<double>(load_float(group + (position * stride + i) * 4));
  }
};

struct Bf16Elements {
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

template <class Elements>
struct FloatCache {
  static float score(const AttentionTile& tile, int query, int position) {
    const std::byte* group = tile.keys[position / kGroupPositions];
    const float* q = static_cast<const float*>(tile.queries) + query * tile.dim;
    double sum = 0.0;
    for (int i = 0; i < tile.dim; ++i) {
      sum += static_cast<double>(q[i]) * Elements::key(group, position % kGroupPositions, i);
    }
    return static_cast<float>(sum * static_cast<double>(tile.scale));
  }

  static double value(const AttentionTile& tile, int position, int i) {
    return Elements::value(tile.values[position / kGroupPositions], tile.value_stride,
                           position % kGroupPositions, i);
  }
};

// Weights are not rounded here: that of the other tables is theirs to answer for.
struct Int8Cache {
  // Of a query's codes with those of a key. The scales are multiplied first: their product is as
  // far from overflow as the score itself.
  static float score(const AttentionTile& tile, int query, int position) {
    const std::byte* group = tile.keys[position / kGroupPositions];
    const int lane = position % kGroupPositions;
    const auto* q = static_cast<const std::int8_t*>(tile.queries) + query * tile.dim;
    std::int64_t dot = 0;
    for (int i = 0; i < tile.dim; ++i) {
      dot += q[i] * static_cast<std::int8_t>(group[(i / 4 * kGroupPositions + lane) * 4 + i % 4]);
    }
    const float scale = load_float(group + kGroupPositions * tile.dim + lane * 4);
    return static_cast<float>(dot) * (scale * (tile.scale * tile.query_scales[query]));
  }

  static double value(const AttentionTile& tile, int position, int i) {
    const std::byte* group = tile.values[position / kGroupPositions];
    const int lane = position % kGroupPositions;
    const auto code =
        static_cast<std::int8_t>(group[(lane / 2 * tile.value_stride + i) * 2 + lane % 2]);
    const float scale = load_float(group + kGroupPositions * tile.value_stride + lane * 4);
    return static_cast<double>(code) * static_cast<double>(scale);
  }
};

template <class Cache>
void attend_query(const AttentionTile& tile, int query) {
  const int count = tile.counts[query];
  float* scores = tile.scores + query * kSplitPositions;
  float max = -INFINITY;
  for (int p = 0; p < count; ++p) {
    scores[p] = Cache::score(tile, query, p);
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
      sum += static_cast<double>(scores[p]) * Cache::value(tile, p, i);
    }
    tile.out[query * tile.value_dim + i] = static_cast<float>(sum);
  }
  tile.max[query] = max;
  tile.sum[query] = static_cast<float>(total);
}

template <class Cache>
void attend(const AttentionTile& tile) {
  for (int query = 0; query < tile.query_count; ++query) attend_query<Cache>(tile, query);
}

float quantize_head(const float* in, int size, std::int8_t* codes) {
  float largest = 0.0F;
  bool finite = true;
  for (int i = 0; i < size; ++i) {
    finite = finite && std::isfinite(in[i]);
    largest = std::fmax(largest, std::fabs(in[i]));
  }
  const bool zero = !finite || largest < kActivationFloor;
  const float inverse = zero ? 0.0F : 127.0F / largest;
  for (int i = 0; i < size; ++i) {
    codes[i] = zero ? std::int8_t{0} : static_cast<std::int8_t>(std::nearbyint(in[i] * inverse));
  }
  return !finite ? NAN : zero ? 0.0F : largest * (1.0F / 127.0F);
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
  table->attention_f32 = attend<FloatCache<F32Elements>>;
  table->attention_bf16 = attend<FloatCache<Bf16Elements>>;
  table->attention_int8 = attend<Int8Cache>;
  table->quantize_head = quantize_head;
  table->attention_fold = fold;
}

}  // namespace kun
