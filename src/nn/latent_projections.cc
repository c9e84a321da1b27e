#include "nn/latent_projections.h"

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

}  // namespace

LatentProjections::LatentProjections(const Loader& load, const LatentAttentionShape& shape) {
  const std::string joint = (load / "kv_b_proj").weight();
  const std::int64_t rows = shape.nope + shape.value;
  std::vector<float> all;
  if (load.weights().has(joint)) {
    all = load_floats(load, joint, shape.heads * rows, shape.latent);
  }
  for (int h = 0; h < shape.heads && load.weights().status().ok(); ++h) {
    if (!all.empty()) {
      const auto values =
          std::span<const float>(all).subspan(static_cast<std::size_t>(h * rows * shape.latent),
                                              static_cast<std::size_t>(rows * shape.latent));
      const auto key_size = static_cast<std::size_t>(shape.nope * shape.latent);
      add(load, shape, values.first(key_size), values.subspan(key_size));
      continue;
    }
    const std::vector<float> key =
        load_floats(load, (load / "k_b_proj" / h).weight(), shape.latent, shape.nope);
    const std::vector<float> value =
        load_floats(load, (load / "v_b_proj" / h).weight(), shape.value, shape.latent);
    if (value.empty()) return;
    add(load, shape, transpose(key, shape.latent, shape.nope), value);
  }
}

void LatentProjections::add(const Loader& load, const LatentAttentionShape& shape,
                            std::span<const float> key, std::span<const float> value) {
  const auto keep = [&](std::span<const float> values, std::int64_t rows, std::int64_t cols,
                        Pointers& pointers) {
    matrices_.push_back(pack_floats(load, values, rows, cols, shape.packed));
    pointers.push_back(matrices_.back().get());
  };
  keep(key, shape.nope, shape.latent, keys_);
  keep(transpose(key, shape.nope, shape.latent), shape.latent, shape.nope, queries_);
  keep(value, shape.value, shape.latent, values_);
}

}  // namespace kun::nn
