// Ops for models that compute nothing: memory, and a progress count the test moves.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>

#include "base/check.h"
#include "device/ops.h"

namespace kun {

class HostOps final : public Ops {
 public:
  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    if (bytes > bytes_max) return nullptr;
    const auto size = (static_cast<std::size_t>(bytes) + 63) / 64 * 64;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, size == 0 ? 64 : size));
    CHECK(memory != nullptr);
    std::fill_n(memory, size, std::byte{0});
    return {memory, [](std::byte* pointer) { std::free(pointer); }};
  }
  std::uint64_t progress() const override { return tiles.load(); }

  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const WeightView>) override {
    return unimplemented("HostOps computes nothing");
  }
  void linear(ConstTensorView, const PackedMatrix&, ConstTensorView, LinearOutput,
              TensorView) override {
    CHECK(false);
  }
  void embed(std::span<const Token>, const WeightView&, TensorView) override { CHECK(false); }
  void rms_norm(ConstTensorView, ConstTensorView, float, TensorView) override { CHECK(false); }
  void rope(TensorView, ConstTensorView, RopeLayout) override { CHECK(false); }
  void layer_norm(ConstTensorView, ConstTensorView, ConstTensorView, float, TensorView) override {
    CHECK(false);
  }
  void copy_heads(ConstTensorView, TensorView) override { CHECK(false); }
  void store_cache(ConstTensorView, std::span<const std::int32_t>, const CachePlane&) override {
    CHECK(false);
  }
  void attention(const AttentionArguments&) override { CHECK(false); }
  void silu_gate(ConstTensorView, TensorView) override { CHECK(false); }
  void linear_groups(ConstTensorView, std::span<const PackedMatrix* const>, TensorView) override {
    CHECK(false);
  }
  void route(const RouteArguments&) override { CHECK(false); }
  void experts(const ExpertArguments&) override { CHECK(false); }
  void latent_attention(const LatentAttentionArguments&) override { CHECK(false); }
  void load_cache(const CachePlane&, std::span<const std::int32_t>, std::int64_t,
                  TensorView) override {
    CHECK(false);
  }
  void choose_entries(const ChooseArguments&) override { CHECK(false); }
  void compress(const CompressArguments&) override { CHECK(false); }
  void hyper_weights(const HyperWeightsArguments&) override { CHECK(false); }
  void hyper_collapse(ConstTensorView, ConstTensorView, TensorView) override { CHECK(false); }
  void hyper_expand(ConstTensorView, ConstTensorView, TensorView) override { CHECK(false); }

  std::atomic<std::uint64_t> tiles = 0;
  std::int64_t bytes_max = std::int64_t{1} << 30;
};

}  // namespace kun
