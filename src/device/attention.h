// What attention reads: cache planes cut into blocks, and per sequence the blocks that hold it.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/cache_entry.h"
#include "tensor/tensor_view.h"

namespace kun {

// What is done with a plane: a device may arrange its entries differently for each.
enum class CacheRole : std::uint8_t {
  kKeys,
  kValues,
  kRows,       // latent attention, which may pick single entries
  kIndexKeys,  // what an indexer scores
};

// One array of one layer's cache: `block_count` blocks of `tokens_per_block` entries of `width`
// elements. Blocks are contiguous; the arrangement inside a block belongs to the device. An int8
// plane (keys and values only) keeps x = scale * code, scale = max|x| / 127, for every head of an
// entry; a head with a NaN or an infinity has scale NaN.
struct CachePlane {
  std::byte* data = nullptr;
  DType dtype = DType::kBF16;
  CacheRole role = CacheRole::kKeys;  // values left as kKeys are read correctly, but slowly
  int width = 0;                      // elements per entry: key heads * head dimension
  int head_width = 0;                 // elements attention reads, or scales, together; 0: all
  int tokens_per_block = 0;           // entries per block: fewer than tokens when compressed
  std::int64_t block_count = 0;

  std::int64_t entry_bytes() const { return cache_entry_bytes(dtype, width, head_width); }
  std::int64_t block_bytes() const { return tokens_per_block * entry_bytes(); }
};

// Consecutive rows of the batch that belong to one sequence. Row r of the slice stands at position
// first_position + r and attends to positions 0 .. first_position + r, whose entries are all in the
// cache (this step's included).
struct AttentionSlice {
  std::int32_t first_row = 0;
  std::int32_t row_count = 0;
  std::int32_t first_position = 0;
  std::span<const std::int32_t> blocks;  // block ids from position 0 on
};

// out[t, h, :] = softmax_j(scale * q[t, h, :] . k[j, g, :]) v[j, g, :], g = h / (heads / kv_heads).
// The context is split at fixed positions, so a row's result depends on its own sequence alone.
struct AttentionArguments {
  ConstTensorView query;  // [token, heads, d] F32
  CachePlane keys;        // width kv_heads * d
  CachePlane values;
  int kv_heads = 0;
  float scale = 1.0F;
  std::span<const AttentionSlice> slices;
  TensorView out;  // [token, heads, d] F32
};

}  // namespace kun
