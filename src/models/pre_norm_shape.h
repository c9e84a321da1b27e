// What tells one pre-norm decoder from another.
#pragma once

#include <cstdint>
#include <optional>

#include "nn/experts.h"
#include "nn/rope.h"

namespace kun {

struct ExpertLayers {
  nn::ExpertsShape shape;
  int first = 0;  // layers before it are dense
  int every = 1;  // of those from `first` on, the multiples of it

  bool contains(int layer) const { return layer >= first && layer % every == 0; }
};

// All but the attention.
struct DecoderShape {
  nn::RopeShape rope;
  std::int64_t inner = 0;  // width of a dense MLP
  int layer_count = 0;
  int vocabulary = 0;
  int context_length_max = 0;
  bool tied_embeddings = false;
  std::optional<ExpertLayers> experts;
};

template <class Attention>
struct PreNormShape : DecoderShape {
  typename Attention::Shape attention;  // hidden and norm_epsilon hold for the whole model
};

}  // namespace kun
