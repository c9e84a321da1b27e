// The per-head matrices between a latent and what heads see of it: kv_b_proj, in the pieces that
// either form of latent attention needs. All of them are small, so they are kept in the cache's own
// type whatever the checkpoint stores.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "nn/loader.h"

namespace kun::nn {

struct LatentAttentionShape;

class LatentProjections {
 public:
  // Reads kv_b_proj, or (GGUF) k_b_proj and v_b_proj of every head, the first transposed.
  LatentProjections(const Loader& load, const LatentAttentionShape& shape);

  // Of heads [first, first + count). Keys are there where the naive form may be used.
  std::span<const PackedMatrix* const> keys(std::int64_t first, std::int64_t count) const {
    return part(keys_, first, count);
  }
  std::span<const PackedMatrix* const> queries(std::int64_t first, std::int64_t count) const {
    return part(queries_, first, count);
  }
  std::span<const PackedMatrix* const> values(std::int64_t first, std::int64_t count) const {
    return part(values_, first, count);
  }

 private:
  using Pointers = std::vector<const PackedMatrix*>;

  static std::span<const PackedMatrix* const> part(const Pointers& all, std::int64_t first,
                                                   std::int64_t count) {
    return std::span(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }
  struct Source;
  // Of each head; none after a problem.
  static std::vector<Source> sources(const Loader& load, const LatentAttentionShape& shape);

  std::vector<std::unique_ptr<PackedMatrix>> matrices_;
  Pointers keys_;     // [head]: [nope, latent], a latent to a key
  Pointers queries_;  // [head]: [latent, nope], its transpose: a query to the latent space
  Pointers values_;   // [head]: [value, latent], a latent to a value
};

}  // namespace kun::nn
