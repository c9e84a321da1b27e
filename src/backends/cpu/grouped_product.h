// Many small products in one run of the thread pool: each group of rows meets a matrix of its own.
// Experts and per-head projections are of this kind; a barrier for each would cost more than the
// product. A row's result depends neither on its group's size nor on how the work was cut.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backends/cpu/input_tiles.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/packed_matrix.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"

namespace kun {

// Rows of the input that meet the same matrices, converted together.
struct ProductRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t cols = 0;
};

struct ProductGroup {
  const CpuPackedMatrix* weight = nullptr;
  std::size_t rows = 0;  // index of its ProductRows
  float* out = nullptr;  // of its first row
};

// One thread at a time.
class GroupedProduct {
 public:
  GroupedProduct(const CpuKernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  // Where each row of the input is. Requires: a group's matrix has as many columns as its rows.
  struct Input {
    std::span<const float* const> rows;
    std::span<const ProductRows> parts;
  };

  // Each group's rows times its matrix, row r of a group to out + r * out_stride.
  void multiply(const Input& input, std::span<const ProductGroup> groups, std::int64_t out_stride);

  // The same with gate_up matrices (two segments of equal size): silu(gate) * up, clamped first
  // when `limit` is not 0.
  void multiply_gated(const Input& input, std::span<const ProductGroup> groups,
                      std::int64_t out_stride, float limit);

 private:
  struct Item {
    std::int32_t group;
    std::int32_t first_panel;
    std::int32_t end_panel;
  };

  // A part's rows in the forms its matrices need; null where nobody asks.
  struct Converted {
    std::byte* forms[kInputFormCount];
  };

  TokenTiles tiles_of(const ProductRows& part) const { return {part.count, tile_tokens_}; }
  void place_forms(const Input& input, std::span<const ProductGroup> groups);
  void convert(const Input& input, std::span<const ProductGroup> groups);
  void convert_tile(const Input& input, std::size_t part, std::int64_t tile, InputForm form) const;
  void cut(const Input& input, std::span<const ProductGroup> groups, bool gated);
  template <class Body>
  void for_each_tile(const Item& item, const ProductRows& part, const Body& body) const;
  void prefetch_share(const ProductGroup& group, std::int64_t panel, std::int64_t tile,
                      const TokenTiles& tiles, LinearTile* call) const;
  void call_kernel(const Input& input, const ProductGroup& group, std::int64_t panel,
                   std::int64_t next, std::int64_t tile, LinearTile* call) const;
  void stream_gated(const Input& input, const ProductGroup& group, const Item& item,
                    std::int64_t out_stride, float limit) const;
  void multiply_gated_panel(const Input& input, const ProductGroup& group, std::int64_t panel,
                            std::int64_t tile, std::int64_t out_stride, float limit) const;

  const CpuKernels& kernels_;
  ThreadPool& pool_;
  int tile_tokens_ = kTileTokens;  // of this call's tiles, at most
  Scratch scratch_;
  std::vector<std::int64_t> offsets_;  // [part][form]: in scratch_
  std::vector<Converted> converted_;   // [part]
  std::vector<std::pair<std::size_t, std::int64_t>>
      tiles_;  // [tile of all parts]: part, tile in it
  std::vector<Item> items_;
};

}  // namespace kun
