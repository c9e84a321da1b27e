// DeepSeek V4: hyper-connections instead of a residual stream, attention over a window and
// compressed entries, experts in every layer, of which the first layers choose by token id. Other
// generations share none of the frame, so this file has its own.
#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "models/factories.h"
#include "models/shape_reader.h"
#include "nn/compressed_attention.h"
#include "nn/heads.h"
#include "nn/hyper_connection.h"

namespace kun {
namespace {

// Blocks are whole runs of every ratio, and whole panels of the indexer's keys.
constexpr int kBlockPositions = 128;
constexpr std::size_t kRatiosMax = 8;  // as many as 128 has divisors

struct Shape {
  nn::CompressedAttentionShape attention;
  nn::HyperShape hyper;
  nn::ExpertsShape experts;
  nn::RopeShape rope;             // of layers with a window only
  nn::RopeShape compressed_rope;  // of the others
  std::vector<int> ratios;        // [layer]
  int layer_count = 0;
  int hash_layer_count = 0;
  int vocabulary = 0;
  int context_length_max = 0;
};

void read_attention(ConfigReader& read, nn::CompressedAttentionShape& shape) {
  int key_heads = 1;
  read.read_or("num_key_value_heads", key_heads, 1, 1, 1);
  read_size(read, "hidden_size", shape.hidden);
  read_size(read, "num_attention_heads", shape.heads, 1, 65536);
  read_size(read, "head_dim", shape.head_width, 1, 65536);
  read_size(read, "qk_rope_head_dim", shape.rope, 1, 65536);
  read_size(read, "q_lora_rank", shape.query_rank);
  read_size(read, "o_lora_rank", shape.output_rank);
  read_size(read, "o_groups", shape.output_groups, 1, 65536);
  read_size(read, "index_head_dim", shape.indexer.head_width, 1, 65536);
  read.read("index_n_heads", shape.indexer.heads, 1, 65536);
  read.read("index_topk", shape.indexer.top, 1, 1 << 24);
  read.read("sliding_window", shape.window, 1, 1 << 24);
  read.read("rms_norm_eps", shape.norm_epsilon, 0.0F, 1.0F);
  if (!read.status().ok()) return;
  if (shape.heads % shape.output_groups != 0) {
    read.fail("num_attention_heads must be a multiple of o_groups");
  }
  const bool even =
      shape.rope % 2 == 0 && shape.head_width % 2 == 0 && shape.indexer.head_width % 2 == 0;
  if (!even || shape.rope > shape.head_width || shape.rope > shape.indexer.head_width) {
    read.fail("head_dim, index_head_dim and qk_rope_head_dim must be even, the last the smallest");
  }
}

void read_ratios(ConfigReader& read, Shape& shape) {
  read.read("compress_ratios", shape.ratios, 0, kBlockPositions);
  if (!read.status().ok()) return;
  if (std::ssize(shape.ratios) < shape.layer_count) {
    return read.fail("compress_ratios has fewer entries than there are layers");
  }
  shape.ratios.resize(static_cast<std::size_t>(shape.layer_count));
  for (const int ratio : shape.ratios) {
    if (ratio != 0 && kBlockPositions % ratio != 0) {
      read.fail("compress_ratios must divide 128");
    }
  }
}

Result<Shape> read_shape(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config());
  Shape shape;
  read_attention(read, shape.attention);
  read.read("num_hidden_layers", shape.layer_count, 1, 4096);
  read.read("vocab_size", shape.vocabulary, 1, kSizeMax);
  read.read_or("max_position_embeddings", shape.context_length_max, 2048, 1, 1 << 30);
  read.read_or("num_hash_layers", shape.hash_layer_count, 0, 0, 4096);
  require_silu(read);
  read_ratios(read, shape);
  shape.hyper.hidden = shape.attention.hidden;
  shape.hyper.norm_epsilon = shape.attention.norm_epsilon;
  read.read("hc_mult", shape.hyper.streams, 1, 8);
  read.read("hc_sinkhorn_iters", shape.hyper.iterations, 1, 1000);
  read.read("hc_eps", shape.hyper.epsilon, 0.0F, 1.0F);
  const auto experts = read_expert_layers(read, shape.attention.hidden);
  if (!experts) read.fail("the key 'n_routed_experts' is missing");
  if (experts) shape.experts = experts->shape;
  read.read_or("swiglu_limit", shape.experts.limit, 0.0F, 0.0F, 1e6F);
  bool interleaved = true;
  read.read_or("rope_interleave", interleaved, true);
  if (!interleaved) read.fail("rope_interleave false is not supported in DeepSeek V4");
  shape.rope.width = static_cast<int>(shape.attention.rope);
  shape.rope.layout = RopeLayout::kInterleaved;
  shape.compressed_rope = shape.rope;
  read.read("rope_theta", shape.rope.theta, 1.0, 1e12);
  read.read("compress_rope_theta", shape.compressed_rope.theta, 1.0, 1e12);
  shape.compressed_rope.scaling =
      read_rope_scaling(read, shape.compressed_rope.theta, shape.context_length_max);
  shape.compressed_rope.scaling.attention_factor = 1.0;
  RETURN_IF_ERROR(read.status());
  return shape;
}

// The groups of the cache: the window of all layers, then one per ratio.
struct Groups {
  explicit Groups(const Shape& shape) {
    ratios = shape.ratios;
    std::sort(ratios.begin(), ratios.end());
    ratios.erase(std::unique(ratios.begin(), ratios.end()), ratios.end());
    std::erase(ratios, 0);
  }

  nn::CompressedGroup of(int ratio) const {
    const auto found = std::find(ratios.begin(), ratios.end(), ratio);
    if (found == ratios.end()) return {};
    return {ratio, 1 + static_cast<int>(found - ratios.begin()), kBlockPositions};
  }

  KvLayout layout(const Shape& shape, DType dtype) const {
    KvLayout layout;
    KvGroup& window = layout.groups.emplace_back();
    window.tokens_per_block = kBlockPositions;
    window.window = shape.attention.window;
    window.layers.resize(static_cast<std::size_t>(shape.layer_count));
    std::iota(window.layers.begin(), window.layers.end(), 0);
    window.planes = nn::CompressedAttention::window_planes(shape.attention, dtype);
    for (const int ratio : ratios) {
      KvGroup& group = layout.groups.emplace_back();
      group.tokens_per_block = kBlockPositions;
      for (int layer = 0; layer < shape.layer_count; ++layer) {
        if (shape.ratios[static_cast<std::size_t>(layer)] == ratio) group.layers.push_back(layer);
      }
      group.planes = nn::CompressedAttention::planes(shape.attention, of(ratio), dtype);
    }
    return layout;
  }

  std::vector<int> ratios;  // ascending, without 0
};

class Layer {
 public:
  Layer(const nn::Loader& load, const Shape& shape, const nn::CompressedGroup& group, int index)
      : hidden_(shape.attention.hidden),
        attention_streams_(load, "hc_attn", shape.hyper, false),
        attention_norm_(load / "attn_norm", hidden_, shape.attention.norm_epsilon),
        attention_(load / "attn", shape.attention, group, index),
        experts_streams_(load, "hc_ffn", shape.hyper, false),
        experts_norm_(load / "ffn_norm", hidden_, shape.attention.norm_epsilon),
        experts_(load / "ffn", shape.experts,
                 {.gate_proj = "w1", .up_proj = "w3", .down_proj = "w2", .bias = "bias"},
                 index < shape.hash_layer_count ? shape.vocabulary : 0) {}

  // streams: [token, N * hidden], in and out.
  void operator()(const ForwardBatch& batch, const KvStorage& cache,
                  const nn::CompressedAngles& angles, TensorView streams,
                  nn::Scratch& scratch) const {
    const std::int64_t mark = scratch.mark();
    const TensorView in = scratch.take({streams.rows(), hidden_});
    const TensorView out = scratch.take({streams.rows(), hidden_});
    const TensorView to_attention = attention_streams_.weights(streams, scratch);
    attention_streams_.collapse(streams, to_attention, in);
    attention_norm_(in, in);
    attention_(batch, cache, in, angles, out, scratch);
    attention_streams_.expand(out, to_attention, streams);

    const TensorView to_experts = experts_streams_.weights(streams, scratch);
    experts_streams_.collapse(streams, to_experts, in);
    experts_norm_(in, in);
    for (std::int64_t t = 0; t < out.rows(); ++t) std::fill_n(out.row<float>(t), hidden_, 0.0F);
    experts_(batch.tokens, in, out, scratch);
    experts_streams_.expand(out, to_experts, streams);
    scratch.rewind(mark);
  }

 private:
  std::int64_t hidden_;
  nn::HyperConnection attention_streams_;
  nn::RmsNorm attention_norm_;
  nn::CompressedAttention attention_;
  nn::HyperConnection experts_streams_;
  nn::RmsNorm experts_norm_;
  nn::Experts experts_;
};

class DeepseekV4 final : public Model {
 public:
  DeepseekV4(const Shape& shape, const nn::Loader& load, DType cache_dtype)
      : shape_(shape),
        groups_(shape),
        layout_(groups_.layout(shape, cache_dtype)),
        ops_(load.ops()),
        rope_(shape.rope),
        compressed_rope_(shape.compressed_rope),
        embedding_(load.weights().table("embed.weight", shape.vocabulary, hidden())),
        head_streams_(load, "hc_head", shape.hyper, true),
        final_norm_(load / "norm", hidden(), shape.attention.norm_epsilon),
        head_({{load / "head", shape.vocabulary}}, hidden()),
        scratch_(load.ops()) {
    layers_.reserve(static_cast<std::size_t>(shape.layer_count));
    for (int i = 0; i < shape.layer_count && load.weights().status().ok(); ++i) {
      const int ratio = shape.ratios[static_cast<std::size_t>(i)];
      layers_.emplace_back(load / "layers" / i, shape, groups_.of(ratio), i);
    }
  }

  int vocabulary_size() const override { return shape_.vocabulary; }
  int hidden_size() const override { return static_cast<int>(hidden()); }
  int context_length_max() const override { return shape_.context_length_max; }
  const KvLayout& kv_layout() const override { return layout_; }

  Status forward(const ForwardBatch& batch, const KvStorage& cache, TensorView out) const override {
    const auto token_count = std::ssize(batch.tokens);
    const std::int64_t streams = shape_.hyper.streams;
    scratch_.reset();
    const TensorView all = scratch_.take({token_count, streams * hidden()});
    const TensorView embedded = scratch_.take({token_count, 1, hidden()});
    ops_.embed(batch.tokens, embedding_, nn::flat_heads(embedded));
    ops_.copy_heads(nn::repeat_head(embedded, streams), nn::heads_of(all, 0, streams, hidden()));

    const nn::CompressedAngles window_angles = angles(batch, rope_, nullptr);
    std::array<nn::CompressedEntries, kRatiosMax> completed;
    std::array<nn::CompressedAngles, kRatiosMax> by_ratio;
    for (std::size_t r = 0; r < groups_.ratios.size(); ++r) {
      completed[r] = {batch.groups[r + 1], groups_.ratios[r], kBlockPositions, scratch_};
      by_ratio[r] = angles(batch, compressed_rope_, &completed[r]);
    }
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const int group = groups_.of(shape_.ratios[i]).group;
      layers_[i](batch, cache,
                 group == 0 ? window_angles : by_ratio[static_cast<std::size_t>(group) - 1], all,
                 scratch_);
    }
    for (std::size_t i = 0; i < batch.wanted_rows.size(); ++i) {
      const ConstTensorView row = all.slice_rows(batch.wanted_rows[i], 1);
      const TensorView hidden_row = out.slice_rows(static_cast<std::int64_t>(i), 1);
      head_streams_.collapse(row, head_streams_.weights(row, scratch_), hidden_row);
      final_norm_(hidden_row, hidden_row);
    }
    return {};
  }

  Status logits(ConstTensorView hidden, TensorView out) const override {
    head_(hidden, LinearOutput::kStore, out);
    return {};
  }

 private:
  std::int64_t hidden() const { return shape_.attention.hidden; }

  nn::CompressedAngles angles(const ForwardBatch& batch, const nn::Rope& rope,
                              const nn::CompressedEntries* completed) const {
    const auto token_count = std::ssize(batch.positions);
    const TensorView tokens = scratch_.take({token_count, rope.pair_count(), 2});
    const TensorView back = scratch_.take({token_count, rope.pair_count(), 2});
    rope.fill(batch.positions, tokens);
    rope.fill_back(batch.positions, back);
    nn::CompressedAngles result{tokens, back, {}, completed};
    if (completed == nullptr) return result;
    const TensorView entries =
        scratch_.take({std::ssize(completed->positions), rope.pair_count(), 2});
    rope.fill(completed->positions, entries);
    result.entries = entries;
    return result;
  }

  Shape shape_;
  Groups groups_;
  KvLayout layout_;
  Ops& ops_;
  nn::Rope rope_;
  nn::Rope compressed_rope_;
  WeightView embedding_;
  std::vector<Layer> layers_;
  nn::HyperConnection head_streams_;
  nn::RmsNorm final_norm_;
  nn::Linear head_;
  mutable nn::Scratch scratch_;  // of the step in progress; forward() runs one call at a time
};

}  // namespace

Result<std::unique_ptr<const Model>> load_deepseek_v4(const Checkpoint& checkpoint, Ops& ops,
                                                      const ModelOptions& options) {
  RETURN_IF_ERROR(require_float_cache(checkpoint.config(), options.cache_dtype));
  ASSIGN_OR_RETURN(const Shape shape, read_shape(checkpoint));
  WeightLoader weights(checkpoint, ops, options.progress, options.cache, options.plan);
  auto model = std::make_unique<DeepseekV4>(shape, nn::Loader(weights), options.cache_dtype);
  RETURN_IF_ERROR(weights.status());
  return std::unique_ptr<const Model>(std::move(model));
}

Result<KvLayout> deepseek_v4_layout(const Checkpoint& checkpoint, DType cache_dtype) {
  RETURN_IF_ERROR(require_float_cache(checkpoint.config(), cache_dtype));
  ASSIGN_OR_RETURN(const Shape shape, read_shape(checkpoint));
  return Groups(shape).layout(shape, cache_dtype);
}

}  // namespace kun
