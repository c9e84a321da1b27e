#include "nn/latent_projections.h"

#include <string_view>
#include <utility>

#include "nn/float_weights.h"
#include "nn/latent_attention.h"

namespace kun::nn {
namespace {

std::vector<float> transpose(std::span<const float> in, std::int64_t rows, std::int64_t cols) {
  std::vector<float> out(in.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      out[static_cast<std::size_t>(c * rows + r)] = in[static_cast<std::size_t>(r * cols + c)];
    }
  }
  return out;
}

enum class What { kKeys, kQueries, kValues };

// Which matrix of which head.
struct Making {
  std::size_t head;
  What what;
};

}  // namespace

// A head's matrices stack in kv_b_proj, keys above values; or lie alone, keys transposed.
struct LatentProjections::Source {
  WeightView key;
  WeightView value;
  bool joint = false;
  std::int64_t first_row = 0;  // of the head in kv_b_proj

  // [nope, latent]
  std::vector<float> keys(const LatentAttentionShape& shape) const {
    if (joint) return floats_of(key, first_row, shape.nope);
    return transpose(floats_of(key), shape.latent, shape.nope);
  }
  // [value, latent]
  std::vector<float> values(const LatentAttentionShape& shape) const {
    return floats_of(value, joint ? first_row + shape.nope : 0, shape.value);
  }
};

LatentProjections::LatentProjections(const Loader& load, const LatentAttentionShape& shape) {
  const std::vector<Source> heads = sources(load, shape);
  std::vector<MadeMatrix> matrices;
  std::vector<Making> makings;
  const auto add = [&](int head, What what, std::string_view name, std::int64_t rows,
                       std::int64_t cols, ReadShare share) {
    matrices.push_back({.key = (load / "kv_b_proj" / name / head).weight(),
                        .rows = rows,
                        .cols = cols,
                        .dtype = shape.packed,
                        .share = share});
    makings.push_back({static_cast<std::size_t>(head), what});
  };
  for (int h = 0; h < std::ssize(heads); ++h) {
    // Answers are generated in the absorbed form, which has no use for keys.
    if (shape.form != LatentForm::kAbsorbed) {
      add(h, What::kKeys, "keys", shape.nope, shape.latent, {0, 1});
    }
    add(h, What::kQueries, "queries", shape.latent, shape.nope, {});
    add(h, What::kValues, "values", shape.value, shape.latent, {});
  }
  matrices_ = load.weights().made(matrices, [&](std::size_t i) {
    const Source& head = heads[makings[i].head];
    if (makings[i].what == What::kValues) return head.values(shape);
    std::vector<float> keys = head.keys(shape);
    if (makings[i].what == What::kKeys) return keys;
    return transpose(keys, shape.nope, shape.latent);
  });
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    Pointers& pointers = makings[i].what == What::kKeys      ? keys_
                         : makings[i].what == What::kQueries ? queries_
                                                             : values_;
    pointers.push_back(matrices_[i].get());
  }
}

std::vector<LatentProjections::Source> LatentProjections::sources(
    const Loader& load, const LatentAttentionShape& shape) {
  const std::string joint = (load / "kv_b_proj").weight();
  const std::int64_t rows = shape.nope + shape.value;
  WeightLoader& weights = load.weights();
  Source source;
  source.joint = weights.has(joint);
  if (source.joint) {
    source.key = weights.view(joint, shape.heads * rows, shape.latent);
    source.value = source.key;
  }
  std::vector<Source> heads;
  for (int h = 0; h < shape.heads && weights.status().ok(); ++h) {
    source.first_row = h * rows;
    if (!source.joint) {
      source.key = weights.view((load / "k_b_proj" / h).weight(), shape.latent, shape.nope);
      source.value = weights.view((load / "v_b_proj" / h).weight(), shape.value, shape.latent);
    }
    heads.push_back(source);
  }
  if (!weights.status().ok()) heads.clear();
  return heads;
}

}  // namespace kun::nn
