// Ops is everything a model may ask of a device. It is the only door between models and kernels.
//
// Methods without a body are the floor every backend must provide. Methods with a body are fusions:
// they are correct on every device, and a backend overrides the ones it can do faster.
// Activations are F32 and row-major, written [rows, cols]; calls return before the work is done on
// devices that have a queue, and in order always.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "base/token.h"
#include "device/attention.h"
#include "device/experts.h"
#include "device/hyper_connection.h"
#include "device/latent_attention.h"
#include "device/packed_image.h"
#include "device/weight.h"
#include "tensor/tensor_view.h"
#include "tensor/weight_view.h"

namespace kun {

// Whether `linear` overwrites its output or adds to it (a residual stream).
enum class LinearOutput : std::uint8_t { kStore, kAccumulate };

// Which pairs of a head's elements RoPE rotates together.
enum class RopeLayout : std::uint8_t {
  kHalf,         // (i, i + d/2), as Hugging Face's rotate_half
  kInterleaved,  // (2i, 2i + 1), as GGUF llama files and MLA
};

class Ops {
 public:
  virtual ~Ops() = default;

  // --- Memory -----------------------------------------------------------------------------------

  // Zeroed device memory for weights, caches and scratch; aligned to 64 bytes at least.
  virtual std::shared_ptr<std::byte> allocate(std::int64_t bytes) = 0;

  // Copies the views, stacked along their rows, into the device's layout. Views of one call share
  // `cols` and may differ in format. The checkpoint may be closed afterwards.
  virtual Result<std::unique_ptr<PackedMatrix>> pack(std::span<const WeightView> views) = 0;
  // What pack() would need for a view.
  virtual std::int64_t packed_bytes(const WeightView& view) const {
    return view.rows * view.row_bytes();
  }
  // A name for all that pack() depends on besides the views; empty: images cannot be made.
  virtual std::string packing() const { return {}; }
  // A matrix as bytes that live as long as it does, and the way back: kDataLoss if they changed.
  virtual PackedImage image(const PackedMatrix&) { return {}; }
  virtual Result<std::unique_ptr<PackedMatrix>> unpack(const PackedImage&) {
    return unimplemented("this device keeps no packed weights");
  }
  // Calls body(i) for all i in [0, count) on several threads, for whoever makes weights; no throw.
  virtual void prepare(std::int64_t count, const std::function<void(std::int64_t)>& body) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
  }

  // --- Floor ------------------------------------------------------------------------------------

  // out[t, o] (+)= sum_i in[t, i] * weight[o, i] + bias[o].  bias: [rows] or empty.
  virtual void linear(ConstTensorView in, const PackedMatrix& weight, ConstTensorView bias,
                      LinearOutput mode, TensorView out) = 0;

  // out[t, :] = row ids[t] of `table`, dequantized. Requires: 0 <= ids[t] < table.rows.
  virtual void embed(std::span<const Token> ids, const WeightView& table, TensorView out) = 0;

  // out[t, i] = in[t, i] * (mean_i(in[t, :]^2) + epsilon)^-1/2 * weight[i]; in == out is allowed.
  // Rank 3 [token, head, d] normalizes each head by itself.
  virtual void rms_norm(ConstTensorView in, ConstTensorView weight, float epsilon,
                        TensorView out) = 0;

  // out[t, i] = (in[t, i] - mean) * (variance + epsilon)^-1/2 * weight[i] + bias[i]; in == out is
  // allowed.
  virtual void layer_norm(ConstTensorView in, ConstTensorView weight, ConstTensorView bias,
                          float epsilon, TensorView out) = 0;

  // out[t, h, :] = in[t, h, :], between views of equal shape.
  virtual void copy_heads(ConstTensorView in, TensorView out) = 0;

  // Rotates heads[t, h, :] in place. cos_sin: [token, d/2, 2], see nn/rope.h.
  virtual void rope(TensorView heads, ConstTensorView cos_sin, RopeLayout layout) = 0;

  // Writes rows[t, :] to entry slots[t] of a cache plane (block * tokens_per_block + offset),
  // in the plane's dtype and in whatever arrangement inside a block this device reads best.
  virtual void store_cache(ConstTensorView rows, std::span<const std::int32_t> slots,
                           const CachePlane& plane) = 0;

  // Grouped-query attention over the paged cache; see device/attention.h.
  virtual void attention(const AttentionArguments& arguments) = 0;

  // out[t, i] = silu(gate_up[t, i]) * gate_up[t, cols/2 + i]
  virtual void silu_gate(ConstTensorView gate_up, TensorView out) = 0;

  // --- Experts ----------------------------------------------------------------------------------

  // out[t, g, :] = weights[g] in[t, g, :]. in: [token, group, cols], whose groups may be the same
  // rows (stride 0); out: [token, group, rows].
  virtual void linear_groups(ConstTensorView in, std::span<const PackedMatrix* const> weights,
                             TensorView out) = 0;

  // Which experts each token goes to, and with what weights; see device/experts.h.
  virtual void route(const RouteArguments& arguments) = 0;

  // out[t, :] += what the token's experts make of it; see device/experts.h.
  virtual void experts(const ExpertArguments& arguments) = 0;

  // --- Latent attention: device/latent_attention.h ----------------------------------------------
  virtual void latent_attention(const LatentAttentionArguments& arguments) = 0;

  // out[t, h, :] = columns [first_col, first_col + width) of entry slots[t], the same for every h.
  virtual void load_cache(const CachePlane& plane, std::span<const std::int32_t> slots,
                          std::int64_t first_col, TensorView out) = 0;

  // Which entries a sparse layer attends to.
  virtual void choose_entries(const ChooseArguments& arguments) = 0;
  // Pools runs of tokens into the entries of a compressed cache.
  virtual void compress(const CompressArguments& arguments) = 0;

  // --- Hyper-connections: device/hyper_connection.h ---------------------------------------------

  // The weights of one sublayer: which streams it reads, where its output goes, how streams mix.
  virtual void hyper_weights(const HyperWeightsArguments& arguments) = 0;
  // out[t, :] = sum_i weights[t, i] streams[t, i, :]
  virtual void hyper_collapse(ConstTensorView streams, ConstTensorView weights, TensorView out) = 0;
  // streams[t, n] = weights[t, N + n] in[t] + sum_m weights[t, 2 N + m N + n] streams[t, m]
  virtual void hyper_expand(ConstTensorView in, ConstTensorView weights, TensorView streams) = 0;

  // --- Fusions ----------------------------------------------------------------------------------

  // out += linear(silu_gate(linear(in, gate_up)), down, bias): a feed-forward block. Scratch, whose
  // content is unspecified afterwards: `wide` [token, gate_up.rows], `gated` [token, down.cols].
  virtual void gated_mlp(ConstTensorView in, const PackedMatrix& gate_up, const PackedMatrix& down,
                         ConstTensorView bias, TensorView wide, TensorView gated, TensorView out) {
    linear(in, gate_up, {}, LinearOutput::kStore, wide);
    silu_gate(wide, gated);
    linear(gated, down, bias, LinearOutput::kAccumulate, out);
  }

  // Tiles finished since the device opened; stands still only when nothing is running or all hangs.
  virtual std::uint64_t progress() const = 0;
};

}  // namespace kun
