// Ops for tests that compute nothing: what they do not override must not be called.
#pragma once

#include "base/check.h"
#include "device/ops.h"

namespace kun {

class TestOps : public Ops {
 public:
  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const WeightView>) override {
    return unimplemented("TestOps computes nothing");
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
};

}  // namespace kun
