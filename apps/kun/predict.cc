// The cost model is a sum: a step is `layers` times (projections, attention, row operations), then
// the head and the choice of tokens. Every term is measured, on the model's own weights and shapes,
// streaming from memory as in a real step; none is taken from a table of peaks. What the sum leaves
// out is what the engine does between steps, some tens of microseconds.
#include "predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backends/cpu/topology.h"
#include "checkpoint/config.h"
#include "sampling/sampler.h"

namespace kun {
namespace {

constexpr int kTokensPerBlock = 32;
constexpr double kSecondsPerTerm = 0.2;
constexpr int kCallsMin = 5;
constexpr std::size_t kCallsMax = 2000;

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Median seconds of a call, the first not counted.
double time_of(const std::function<void()>& body) {
  body();
  std::vector<double> times;
  const double end = now() + kSecondsPerTerm;
  while (times.size() < kCallsMin || (now() < end && times.size() < kCallsMax)) {
    const double start = now();
    body();
    times.push_back(now() - start);
  }
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  return times[times.size() / 2];
}

struct Shape {
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_width = 0;
  int inner = 0;
  int vocabulary = 0;
};

Result<Shape> read_shape(const Checkpoint& checkpoint) {
  Shape shape;
  ConfigReader read(checkpoint.config());
  read.read("num_hidden_layers", shape.layers, 1, 4096);
  read.read("num_attention_heads", shape.heads, 1, 65536);
  read.read_or("num_key_value_heads", shape.kv_heads, shape.heads, 1, 65536);
  read.read("hidden_size", shape.hidden, 1, 1 << 24);
  read.read_or("head_dim", shape.head_width, shape.hidden / std::max(1, shape.heads), 1, 65536);
  read.read("intermediate_size", shape.inner, 1, 1 << 24);
  read.read("vocab_size", shape.vocabulary, 1, 1 << 28);
  RETURN_IF_ERROR(read.status());
  if (shape.heads % shape.kv_heads != 0 || shape.head_width % 2 != 0) {
    return unimplemented("the cost model knows no attention of this shape");
  }
  return shape;
}

enum class Use { kStore, kAccumulate, kGatedMlp };

// Equal matrices of several layers.
struct Matrices {
  Use use = Use::kStore;
  std::vector<std::vector<WeightView>> each;  // the parts of a fused matrix; kGatedMlp: and down
};

struct Part {
  std::string name;
  std::int64_t cols;
};

// Numbers of F32 that live as long as the term that uses them.
struct Floats {
  Floats(std::int64_t rows, std::int64_t cols)
      : values(static_cast<std::size_t>(rows * cols)),
        view(reinterpret_cast<std::byte*>(values.data()), DType::kF32, {rows, cols}) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i * 2654435761U % 2001) / 1000.0F - 1.0F;
    }
  }
  TensorView heads(std::int64_t count, std::int64_t width) const {
    return {view.data, DType::kF32, {view.rows(), count, width}};
  }
  std::vector<float> values;
  TensorView view;
};

// Seconds of one step.
struct StepCost {
  double linear = 0.0;
  double attention = 0.0;
  double rows = 0.0;
  double head = 0.0;
  double sampling = 0.0;

  double total() const { return linear + attention + rows + head + sampling; }
};

class Predictor {
 public:
  Predictor(const Checkpoint& checkpoint, Device& device, const Shape& shape)
      : checkpoint_(checkpoint), device_(device), ops_(device.ops()), shape_(shape) {}

  Status find_matrices();
  // `users` slices of `rows` tokens each, the last of `context` positions; one row of each wants a
  // token.
  Result<StepCost> step(int users, int rows, int context);

 private:
  Status add(const std::string& prefix, const std::vector<Part>& parts, Use use);
  Result<double> linear_seconds(const Matrices& matrices, std::int64_t tokens);
  double attention_seconds(int users, int rows, int context);
  double rows_seconds(std::int64_t tokens);
  double sampling_seconds(std::int64_t rows);

  const Checkpoint& checkpoint_;
  Device& device_;
  Ops& ops_;
  Shape shape_;
  std::map<std::string, Matrices> matrices_;  // by formats and shape
  Matrices head_;
};

Status Predictor::add(const std::string& prefix, const std::vector<Part>& parts, Use use) {
  std::vector<WeightView> views;
  std::string key = fmt::format("{}", static_cast<int>(use));
  for (const Part& part : parts) {
    const std::string full = prefix + part.name + ".weight";
    if (!checkpoint_.has(full)) {
      return unimplemented(fmt::format(
          "the cost model knows dense decoders only, and this model has no tensor {}", full));
    }
    ASSIGN_OR_RETURN(const WeightView view, checkpoint_.matrix(full));
    if (view.cols != part.cols)
      return data_loss(fmt::format("tensor {} has the wrong shape", full));
    key += fmt::format(" {} {}x{}", name(view.format), view.rows, view.cols);
    views.push_back(view);
  }
  Matrices& matrices = matrices_[key];
  matrices.use = use;
  matrices.each.push_back(std::move(views));
  return {};
}

Status Predictor::find_matrices() {
  const std::int64_t mixed = std::int64_t{shape_.heads} * shape_.head_width;
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const std::string attention = prefix + "self_attn.";
    RETURN_IF_ERROR(
        add(attention,
            {{"q_proj", shape_.hidden}, {"k_proj", shape_.hidden}, {"v_proj", shape_.hidden}},
            Use::kStore));
    RETURN_IF_ERROR(add(attention, {{"o_proj", mixed}}, Use::kAccumulate));
    RETURN_IF_ERROR(
        add(prefix + "mlp.",
            {{"gate_proj", shape_.hidden}, {"up_proj", shape_.hidden}, {"down_proj", shape_.inner}},
            Use::kGatedMlp));
  }
  const bool tied = !checkpoint_.has("lm_head.weight");
  ASSIGN_OR_RETURN(const WeightView head,
                   checkpoint_.matrix(tied ? "model.embed_tokens.weight" : "lm_head.weight"));
  if (head.cols != shape_.hidden) return data_loss("the output head has the wrong shape");
  head_.each = {{head}};
  return {};
}

Result<double> Predictor::linear_seconds(const Matrices& matrices, std::int64_t tokens) {
  const bool is_mlp = matrices.use == Use::kGatedMlp;
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  std::vector<std::unique_ptr<PackedMatrix>> downs;
  std::int64_t bytes = 0;
  for (const std::vector<WeightView>& each : matrices.each) {
    std::span<const WeightView> views = each;
    if (is_mlp) {
      ASSIGN_OR_RETURN(auto down, ops_.pack(views.last(1)));
      bytes += down->bytes;
      downs.push_back(std::move(down));
      views = views.first(views.size() - 1);
    }
    ASSIGN_OR_RETURN(auto matrix, ops_.pack(views));
    bytes += matrix->bytes;
    packed.push_back(std::move(matrix));
    if (bytes >= uncached_bytes()) break;
  }
  const std::int64_t rows = packed.front()->rows;
  const Floats in(tokens, packed.front()->cols);
  const Floats out(tokens, is_mlp ? downs.front()->rows : rows);
  const Floats wide(is_mlp ? tokens : 0, rows);
  const Floats gated(is_mlp ? tokens : 0, rows / 2);
  std::size_t next = 0;
  return time_of([&] {
    const std::size_t layer = next++ % packed.size();
    if (is_mlp) {
      ops_.gated_mlp(in.view, *packed[layer], *downs[layer], {}, wide.view, gated.view, out.view);
      return;
    }
    const bool adds = matrices.use == Use::kAccumulate;
    ops_.linear(in.view, *packed[layer], {},
                adds ? LinearOutput::kAccumulate : LinearOutput::kStore, out.view);
  });
}

// Blocks of all users lie scattered, as in a pool that has been in use.
double Predictor::attention_seconds(int users, int rows, int context) {
  const int width = shape_.kv_heads * shape_.head_width;
  const int blocks_each = (context + kTokensPerBlock - 1) / kTokensPerBlock;
  CachePlane plane{nullptr,
                   device_.cache_dtype(),
                   CacheRole::kKeys,
                   width,
                   shape_.head_width,
                   kTokensPerBlock,
                   std::int64_t{users} * blocks_each};
  const std::int64_t plane_bytes = plane.block_count * plane.block_bytes();
  const std::int64_t copies =
      std::clamp<std::int64_t>(uncached_bytes() / (2 * plane_bytes), 1, shape_.layers);
  const auto memory = ops_.allocate(copies * 2 * plane_bytes);
  // Every byte written once: untouched pages are all the same zeros, and would come from a cache.
  std::fill_n(memory.get(), copies * 2 * plane_bytes, std::byte{0x3C});
  std::vector<std::int32_t> ids(static_cast<std::size_t>(plane.block_count));
  for (std::int64_t b = 0; b < plane.block_count; ++b) {
    ids[static_cast<std::size_t>(b / users + b % users * blocks_each)] =
        static_cast<std::int32_t>(b);
  }
  std::vector<AttentionSlice> slices;
  for (int user = 0; user < users; ++user) {
    slices.push_back({user * rows, rows, context - rows,
                      std::span(ids).subspan(static_cast<std::size_t>(user * blocks_each),
                                             static_cast<std::size_t>(blocks_each))});
  }
  const std::int64_t tokens = std::int64_t{users} * rows;
  const Floats query(tokens, std::int64_t{shape_.heads} * shape_.head_width);
  const Floats out(tokens, query.view.cols());
  std::int64_t next = 0;
  return time_of([&] {
    AttentionArguments arguments{.query = query.heads(shape_.heads, shape_.head_width),
                                 .keys = plane,
                                 .values = plane,
                                 .kv_heads = shape_.kv_heads,
                                 .scale = 0.1F,
                                 .slices = slices,
                                 .out = out.heads(shape_.heads, shape_.head_width)};
    arguments.keys.data = memory.get() + next++ % copies * 2 * plane_bytes;
    arguments.values.data = arguments.keys.data + plane_bytes;
    arguments.values.role = CacheRole::kValues;
    ops_.attention(arguments);
  });
}

// Norms, rotations and cache entries of one layer.
double Predictor::rows_seconds(std::int64_t tokens) {
  const std::int64_t kv_width = std::int64_t{shape_.kv_heads} * shape_.head_width;
  const Floats residual(tokens, shape_.hidden);
  const Floats normed(tokens, shape_.hidden);
  const Floats scale(1, shape_.hidden);
  const Floats query(tokens, std::int64_t{shape_.heads} * shape_.head_width);
  const Floats key(tokens, kv_width);
  const Floats turns(tokens, shape_.head_width);
  CachePlane plane{nullptr,
                   device_.cache_dtype(),
                   CacheRole::kKeys,
                   static_cast<int>(kv_width),
                   shape_.head_width,
                   kTokensPerBlock,
                   (tokens + kTokensPerBlock - 1) / kTokensPerBlock};
  const auto memory = ops_.allocate(plane.block_count * plane.block_bytes());
  plane.data = memory.get();
  std::vector<std::int32_t> slots(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int32_t>(i);
  const ConstTensorView weight(scale.view.data, DType::kF32, {shape_.hidden});
  const TensorView cos_sin(turns.view.data, DType::kF32, {tokens, shape_.head_width / 2, 2});
  return time_of([&] {
    for (int i = 0; i < 2; ++i) ops_.rms_norm(residual.view, weight, 1e-6F, normed.view);
    ops_.rope(query.heads(shape_.heads, shape_.head_width), cos_sin, RopeLayout::kHalf);
    ops_.rope(key.heads(shape_.kv_heads, shape_.head_width), cos_sin, RopeLayout::kHalf);
    for (const CacheRole role : {CacheRole::kKeys, CacheRole::kValues}) {
      plane.role = role;
      ops_.store_cache(key.view, slots, plane);
    }
  });
}

// The likeliest token of every row.
double Predictor::sampling_seconds(std::int64_t rows) {
  const Floats logits(rows, shape_.vocabulary);
  SamplingParams params;
  params.temperature = 0.0F;
  SamplingRow row;
  row.params = &params;
  Sampler sampler(shape_.vocabulary);
  return time_of([&] {
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::span<const float> one(logits.view.row<float>(r),
                                       static_cast<std::size_t>(shape_.vocabulary));
      (void)sampler.sample(one, row);
    }
  });
}

Result<StepCost> Predictor::step(int users, int rows, int context) {
  const std::int64_t tokens = std::int64_t{users} * rows;
  StepCost cost;
  for (const auto& [key, matrices] : matrices_) {
    ASSIGN_OR_RETURN(const double seconds, linear_seconds(matrices, tokens));
    cost.linear += seconds * static_cast<double>(matrices.each.size());
  }
  ASSIGN_OR_RETURN(cost.head, linear_seconds(head_, users));
  cost.attention = shape_.layers * attention_seconds(users, rows, context);
  cost.rows = shape_.layers * rows_seconds(tokens);
  cost.sampling = sampling_seconds(users);
  return cost;
}

void print_cost(const StepCost& cost) {
  fmt::print(
      "               (ms: projections {:.2f}, attention {:.2f}, norms and rotations {:.2f}, head "
      "{:.2f}, sampling {:.2f})\n",
      1e3 * cost.linear, 1e3 * cost.attention, 1e3 * cost.rows, 1e3 * cost.head,
      1e3 * cost.sampling);
}

}  // namespace

Status print_prediction(const Checkpoint& checkpoint, Device& device, const PredictionLoad& load) {
  ASSIGN_OR_RETURN(const Shape shape, read_shape(checkpoint));
  Predictor predictor(checkpoint, device, shape);
  RETURN_IF_ERROR(predictor.find_matrices());
  const int context = std::max(load.context, load.prompt_tokens);
  ASSIGN_OR_RETURN(const StepCost decode, predictor.step(load.users, 1, context));
  ASSIGN_OR_RETURN(const StepCost prefill,
                   predictor.step(1, load.prompt_tokens, load.prompt_tokens));
  fmt::print("prediction     on {}\n", device.description());
  fmt::print(
      "  decode       {:.1f} tokens/s in all, {:.1f} each, {} users at {} tokens: {:.2f} ms\n",
      load.users / decode.total(), 1.0 / decode.total(), load.users, context, 1e3 * decode.total());
  print_cost(decode);
  fmt::print("  prefill      {:.1f} tokens/s, a prompt of {} tokens: {:.1f} ms\n",
             load.prompt_tokens / prefill.total(), load.prompt_tokens, 1e3 * prefill.total());
  print_cost(prefill);
  return {};
}

}  // namespace kun
