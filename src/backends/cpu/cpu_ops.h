// Ops on the processor: cuts every operation into tiles, gives them to the thread pool and calls
// the kernel table. Results do not depend on how the tiles were cut or who computed them.
#pragma once

#include <algorithm>
#include <vector>

#include "backends/cpu/attention_run.h"
#include "backends/cpu/cpu_experts.h"
#include "backends/cpu/entry_choice.h"
#include "backends/cpu/input_tiles.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/latent_run.h"
#include "backends/cpu/pack_plan.h"
#include "backends/cpu/packed_matrix.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "device/device.h"
#include "device/ops.h"

namespace kun {

// One thread at a time. Calls return when the work is done.
class CpuOps final : public Ops {
 public:
  CpuOps(const CpuKernels& kernels, ComputeType compute, ThreadPool& pool,
         WeightTarget weights = WeightTarget::kAuto);

  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override;
  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const WeightView> views) override;
  std::int64_t packed_bytes(const WeightView& view) const override;
  std::string packing() const override;
  PackedImage image(const PackedMatrix& matrix) override;
  Result<std::unique_ptr<PackedMatrix>> unpack(const PackedImage& image) override;
  void prepare(std::int64_t count, const std::function<void(std::int64_t)>& body) override;
  void linear(ConstTensorView in, const PackedMatrix& weight, ConstTensorView bias,
              LinearOutput mode, TensorView out) override;
  void embed(std::span<const Token> ids, const WeightView& table, TensorView out) override;
  void rms_norm(ConstTensorView in, ConstTensorView weight, float epsilon, TensorView out) override;
  void rope(TensorView heads, ConstTensorView cos_sin, RopeLayout layout) override;
  void layer_norm(ConstTensorView in, ConstTensorView weight, ConstTensorView bias, float epsilon,
                  TensorView out) override;
  void copy_heads(ConstTensorView in, TensorView out) override;
  void store_cache(ConstTensorView rows, std::span<const std::int32_t> slots,
                   const CachePlane& plane) override;
  void attention(const AttentionArguments& arguments) override;
  void silu_gate(ConstTensorView gate_up, TensorView out) override;
  void gated_mlp(ConstTensorView in, const PackedMatrix& gate_up, const PackedMatrix& down,
                 ConstTensorView bias, TensorView wide, TensorView gated, TensorView out) override;
  void linear_groups(ConstTensorView in, std::span<const PackedMatrix* const> weights,
                     TensorView out) override;
  void route(const RouteArguments& arguments) override;
  void experts(const ExpertArguments& arguments) override;
  void latent_attention(const LatentAttentionArguments& arguments) override;
  void load_cache(const CachePlane& plane, std::span<const std::int32_t> slots,
                  std::int64_t first_col, TensorView out) override;
  void choose_entries(const ChooseArguments& arguments) override;
  void compress(const CompressArguments& arguments) override;
  void hyper_weights(const HyperWeightsArguments& arguments) override;
  void hyper_collapse(ConstTensorView streams, ConstTensorView weights, TensorView out) override;
  void hyper_expand(ConstTensorView in, ConstTensorView weights, TensorView streams) override;
  std::uint64_t progress() const override { return pool_.progress(); }

 private:
  // The input of one linear call in the forms its segments need.
  struct PreparedInput {
    explicit PreparedInput(const TokenTiles& cut) : tiles(cut) {}

    TokenTiles tiles;
    const void* forms[kInputFormCount] = {};
    std::int64_t token_bytes[kInputFormCount] = {};  // from one token to the next, tile by tile

    const std::byte* tile(std::size_t form, std::int64_t index) const {
      return static_cast<const std::byte*>(forms[form]) + tiles.first(index) * token_bytes[form];
    }
  };

  // Where gates and ups meet: in rows of floats, or, where `blocks` is not null, in the blocks of
  // the next product's input; `rows` is scratch then.
  struct GatedOutput {
    TensorView rows;
    ActivationBlock* blocks;
  };

  PreparedInput prepare_input(ConstTensorView in, const CpuPackedMatrix& weight);
  void convert_tokens(ConstTensorView in, const TokenTiles& tiles, InputForm form, std::byte* out);
  void multiply_panel(const CpuPackedMatrix& weight, const PanelPlace& place,
                      const PreparedInput& input, std::int64_t tile, LinearTile* call) const;
  static void prefetch_tile(const PreparedInput& input, InputForm form, std::int64_t tile,
                            std::int64_t index, std::int64_t count, LinearTile* call);
  void run_tiles(const CpuPackedMatrix& weight, const PreparedInput& input, const float* bias,
                 LinearOutput mode, TensorView out);
  static bool halves_are_whole_panels(const CpuPackedMatrix& gate_up);
  void run_gated(const CpuPackedMatrix& weight, const PreparedInput& input, const GatedOutput& out);
  void stream_gated(const CpuPackedMatrix& weight, const PreparedInput& input, std::int64_t first,
                    std::int64_t end, const GatedOutput& out) const;
  void join_gated(float* gates, const float* ups, const TokenTiles& tiles, std::int64_t tile,
                  std::int64_t first, std::int64_t panels, const GatedOutput& out) const;

  // body(row) for every row: on this thread when there is little to do, else in runs of rows.
  template <class Body>
  void run_rows(std::int64_t rows, std::int64_t elements_per_row, const Body& body) {
    const std::int64_t run = std::max<std::int64_t>(1, kInlineElements / 2 / elements_per_row);
    if (rows * elements_per_row <= kInlineElements) {
      for (std::int64_t row = 0; row < rows; ++row) body(row);
      return;
    }
    pool_.run((rows + run - 1) / run, [&](std::int64_t tile, int) {
      const std::int64_t end = std::min(rows, (tile + 1) * run);
      for (std::int64_t row = tile * run; row < end; ++row) body(row);
    });
  }

  // About 2 microseconds of work on one core, what waking the pool is worth.
  static constexpr std::int64_t kInlineElements = 16384;

  const CpuKernels& kernels_;
  const ComputeType compute_;
  const PackSettings packing_;
  ThreadPool& pool_;
  Slabs weight_memory_;
  Scratch input_scratch_[kInputFormCount];
  Scratch gated_scratch_;  // between the two products of gated_mlp
  Scratch partial_scratch_;
  std::vector<AttentionItem> attention_items_;
  std::vector<std::int64_t> split_rows_;  // items whose rows are to be combined
  std::vector<Scratch> worker_scratch_;
  ExpertRun expert_run_;
  std::vector<LatentItem> latent_items_;
  std::vector<std::size_t> latent_starts_;  // of the items that begin a row
  std::vector<ChoiceRow> choice_rows_;
  std::vector<std::int64_t> slice_entries_;  // [slice]: the first entry that it completes
};

}  // namespace kun
