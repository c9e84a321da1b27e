// Attention whose cache holds one vector per position (or per run of positions) that is key and
// value of all heads: the absorbed form of latent attention (DeepSeek V2 to V3.2), and the windows
// and compressed entries of V4.
#pragma once

#include <cstdint>
#include <span>

#include "device/attention.h"
#include "tensor/tensor_view.h"

namespace kun {

// One cache that rows attend to. A row at position p sees the entries [first, (p + 1) / stride), or
// of them the last `window`, or of them the chosen ones.
struct LatentSource {
  CachePlane plane;                        // role kRows; width as the query's, or more
  std::span<const AttentionSlice> slices;  // of the step, with the blocks of this plane
  int stride = 1;                          // positions that one entry stands for
  int window = 0;                          // 0: no limit
  int first = 0;                           // entries before it are seen by no row
  // I32 [token, n]: the entries of a row, ascending, then -1; or empty: all that it sees.
  ConstTensorView chosen{};
};

// out[t, h, :] = sum_j softmax_j(scale q[t, h, :] . entry[j, :]) entry[j, :value width], over the
// entries of all sources. A sink adds exp(sinks[h]) to the softmax's denominator and no value.
// Entries are taken in runs at fixed places, so a row's result depends on its own context alone.
struct LatentAttentionArguments {
  ConstTensorView query;  // [token, heads, d] F32
  std::span<const LatentSource> sources;
  float scale = 1.0F;
  ConstTensorView sinks{};  // [heads] F32; or empty
  TensorView out;           // [token, heads, value width <= d] F32; rows of no slice are left alone
};

// The lightning indexer: score(t, j) = sum_h weights[t, h] max(0, query[t, h, :] . key[j, :]) over
// the entries that a row at position p sees, [first, (p + 1) / stride); chosen[t, :] = the best of
// them in ascending order, then -1. Ties go to the lower entry. Rows of no slice are left alone.
struct ChooseArguments {
  ConstTensorView query;    // [token, heads, d] F32
  ConstTensorView weights;  // [token, heads] F32
  CachePlane keys;          // role kIndexKeys, width d
  std::span<const AttentionSlice> slices;
  int stride = 1;
  int first = 0;
  TensorView chosen;  // [token, n] I32
};

// Runs of `ratio` positions become one vector: entry w = sum_t softmax_t(gate_t + bias[t % ratio])
// value_t, per channel, over the positions [w ratio, (w + 1) ratio). With `overlap` rows hold two
// vectors, and entry w pools the first of the run before (if any) with the second of its own.
// Unfinished runs wait in the state: the sums of one block's last computed position.
struct CompressArguments {
  ConstTensorView value;  // [token, width] or, with overlap, [token, 2 width] F32
  ConstTensorView gate;   // the same
  ConstTensorView bias;   // [ratio, the same width]
  int ratio = 1;          // divides `block_positions`
  bool overlap = false;
  int block_positions = 1;  // positions in a block of the state's group
  CachePlane state;         // F32, one entry a block: see compress_state_width()
  std::span<const AttentionSlice> slices;
  TensorView out;  // [entry, width]: those completed in this step, slice by slice
};

// A maximum, a sum and a weighted sum per channel; for overlap of three runs.
constexpr std::int64_t compress_state_width(std::int64_t width, bool overlap) {
  return (overlap ? 9 : 3) * width;
}

}  // namespace kun
