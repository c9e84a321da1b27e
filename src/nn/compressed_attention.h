// Attention of DeepSeek V4: every token sees a window of positions as they are and, in most layers,
// all that lies behind in compressed entries, or those of them that an indexer picks. One vector
// per entry is key and value of all heads.
#pragma once

#include <optional>
#include <vector>

#include "nn/compressor.h"
#include "nn/indexer.h"
#include "nn/rms_norm.h"

namespace kun::nn {

struct CompressedAttentionShape {
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t head_width = 0;
  std::int64_t rope = 0;  // the last elements of a head
  std::int64_t query_rank = 0;
  std::int64_t output_rank = 0;
  std::int64_t output_groups = 0;  // divides heads
  int window = 0;
  float norm_epsilon = 1e-6F;
  IndexerShape indexer;

  CompressorShape compressor(int ratio) const;
  CompressorShape index_compressor() const;
};

// Which KV group a layer's entries are in, by its ratio. The window's is group 0.
struct CompressedGroup {
  int ratio = 0;  // positions per entry; 0: the layer has a window only
  int group = 0;
  int block_positions = 1;
};

// Angles of a step: cosines and sines, with those of the rotation back.
struct CompressedAngles {
  ConstTensorView tokens;   // [token, rope/2, 2]
  ConstTensorView back;     // the same with negated sines
  ConstTensorView entries;  // of the entries that the step completes
  const CompressedEntries* completed = nullptr;
};

class CompressedAttention {
 public:
  CompressedAttention(const Loader& load, const CompressedAttentionShape& shape,
                      const CompressedGroup& group, int layer);

  // Of the window's group, and of the group of a ratio.
  static std::vector<KvPlane> window_planes(const CompressedAttentionShape& shape, DType dtype);
  static std::vector<KvPlane> planes(const CompressedAttentionShape& shape,
                                     const CompressedGroup& group, DType dtype);

  // out[t, :] = attention(in)[t, :]; writes this step's entries into the caches.
  void operator()(const ForwardBatch& batch, const KvStorage& cache, ConstTensorView in,
                  const CompressedAngles& angles, TensorView out, Scratch& scratch) const;

 private:
  void load_index(const Loader& load, const CompressedAttentionShape& shape);
  void load_output(const Loader& load);
  ConstTensorView choose(const ForwardBatch& batch, const std::vector<CachePlane>& planes,
                         ConstTensorView in, ConstTensorView query_in,
                         const CompressedAngles& angles, Scratch& scratch) const;
  void attend(const ForwardBatch& batch, const std::vector<CachePlane>& planes, ConstTensorView in,
              ConstTensorView query_in, TensorView query, const CompressedAngles& angles,
              TensorView mixed, Scratch& scratch) const;

  Ops* ops_;
  CompressedAttentionShape shape_;
  CompressedGroup group_;
  std::size_t layer_;
  Linear down_;  // what queries are made from, and the entry
  RmsNorm query_norm_;
  Linear query_up_;
  RmsNorm entry_norm_;
  DeviceVector sinks_;
  DeviceVector ones_;
  std::optional<Compressor> compressor_;
  std::optional<Compressor> index_compressor_;
  std::optional<Linear> index_query_;
  std::optional<Linear> index_weights_;
  std::vector<std::unique_ptr<PackedMatrix>> output_matrices_;  // [group]
  std::vector<const PackedMatrix*> output_groups_;
  Linear output_;
};

}  // namespace kun::nn
