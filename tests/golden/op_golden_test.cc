// Operators against vectors that another engine wrote: inputs, outputs and tolerances are files, so
// that an error in a formula cannot be repeated in the test of it. Every vector runs through Ops on
// every kernel table of this machine; vectors of operators that Kun does not have are named below.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/checkpoint.h"
#include "models/registry.h"
#include "nn/rope.h"
#include "op_vector.h"
#include "test_folder.h"

namespace kun {
namespace {

namespace fs = std::filesystem;

const fs::path kOriginals = fs::path(KUN_SHARED_DATA) / "op-goldens" / "vllm_cpp";

const std::set<std::string> kTested = {
    "dense_attention_f32_realdims",
    "dense_attention_f32_small",
    "embedding_bf16_32ids",
    "long_rope_llama3_gptj_bf16_bands",
    "long_rope_llama3_neox_f32_bands",
    "long_rope_llama3_neox_f32_equal_factors",
    "long_rope_yarn_neox_bf16",
    "long_rope_yarn_neox_f32_truncate",
    "matmul_bf16_16x64x32",
    "moe_block_bf16_small",
    "moe_block_f32_small",
    "moe_router_topk_bf16_realratio",
    "moe_router_topk_f32_small",
    "moe_router_topk_f32_small_norenorm",
    "rmsnorm_bf16_8x128",
    "rmsnorm_f32_8x128",
    "rmsnorm_fused_residual_f32_8x128",
    "rope_f32_pos_131k",
    "rope_f32_pos_short",
    "silu_and_mul_bf16_8x256",
};

const std::map<std::string, std::string> kNotApplicable = {
    {"deepseek_v2_greedy", "needs DeepSeek-V2-Lite's weights (MLA and experts)"},
    {"glm4_moe_lite_greedy", "needs GLM-4.7-Flash's weights (MLA and experts)"},
    {"long_rope_dynamic_alpha_neox_f32", "dynamic NTK scaling is refused by the configuration"},
    {"long_rope_dynamic_factor1_neox_f32", "dynamic NTK scaling is refused by the configuration"},
    {"long_rope_dynamic_factor_gptj_bf16", "dynamic NTK scaling is refused by the configuration"},
    {"long_rope_phi3_neox_bf16_long", "longrope (Phi-3) is refused by the configuration"},
    {"long_rope_phi3_neox_f32_mscale_override", "longrope (Phi-3) is refused by the configuration"},
    {"long_rope_phi3_neox_f32_short", "longrope (Phi-3) is refused by the configuration"},
    {"long_rope_yarn_gptj_f32_untruncated_no_mscale",
     "RopeScaling has neither YaRN without truncation nor an extrapolation factor"},
    {"long_rope_yarn_mrope_bf16_interleaved", "three positions a token (images) do not exist here"},
    {"long_rope_yarn_mrope_f32_contiguous", "three positions a token (images) do not exist here"},
    {"long_rope_yarn_mrope_f32_text_1d", "its YaRN range is of 4 times the context, as mrope's is"},
    {"tokenizer_deepseek_v2", "no operator; src/runtime/tokenizer_file_test.cc runs it"},
};

void run_rms_norm(Ops& ops, const OpVector& vector) {
  std::vector<float> in = vector.floats("x");
  std::vector<float> weight = vector.floats("weight");
  const std::int64_t width = std::ssize(weight);
  const std::int64_t rows = std::ssize(in) / width;
  if (vector.has("residual_in")) {
    // Kun's residual stream is added to by the layer before: `linear` accumulates.
    const std::vector<float> residual = vector.floats("residual_in");
    for (std::size_t i = 0; i < in.size(); ++i) in[i] += residual[i];
    vector.expect("residual_out", in);
  }
  std::vector<float> out = zeros(rows * width);
  ops.rms_norm(view(in, {rows, width}), view(weight, {width}),
               static_cast<float>(vector.number("eps")), view(out, {rows, width}));
  vector.expect("out", out);
}

// Rotates the leading elements of every head, as the models with partial rotation do: through a
// view of their columns. data: [position][head][head size]
void rotate(Ops& ops, const nn::Rope& rope, std::span<const std::int32_t> positions,
            std::vector<float>& data, std::int64_t heads) {
  const std::int64_t tokens = std::ssize(positions);
  const std::int64_t width = 2 * rope.pair_count();
  std::vector<float> angles = zeros(tokens * width);
  const TensorView cos_sin = view(angles, {tokens, rope.pair_count(), 2});
  rope.fill(positions, cos_sin);
  const TensorView all = view(data, {tokens, heads, std::ssize(data) / tokens / heads});
  ops.rope(all.slice_cols(0, width), cos_sin, rope.layout());
}

void expect_rotations(Ops& ops, const OpVector& vector, const nn::Rope& rope) {
  const std::vector<std::int32_t> positions = vector.integers("positions");
  for (const std::string tensor : {"q", "k"}) {
    std::vector<float> data = vector.floats(tensor + "_in");
    rotate(ops, rope, positions, data,
           vector.integer(tensor == "q" ? "num_q_heads" : "num_kv_heads"));
    vector.expect(tensor + "_out", data);
  }
}

void run_rope(Ops& ops, const OpVector& vector) {
  expect_rotations(ops, vector,
                   nn::Rope({.width = vector.integer("rotary_dim"),
                             .theta = vector.number("base"),
                             .layout = RopeLayout::kHalf,
                             .scaling = {}}));
}

nn::RopeScaling read_scaling(simdjson::dom::element parameters) {
  const auto number = [&](const char* key, double otherwise) {
    double value = 0.0;
    return parameters[key].get(value) == simdjson::SUCCESS ? value : otherwise;
  };
  const std::string_view type = parameters["rope_type"];
  nn::RopeScaling scaling;
  scaling.factor = number("factor", 1.0);
  scaling.original_context = number("original_max_position_embeddings", 0.0);
  if (type == "llama3") {
    scaling.kind = nn::RopeScaling::Kind::kLlama3;
    scaling.low_frequency_factor = number("low_freq_factor", 0.0);
    scaling.high_frequency_factor = number("high_freq_factor", 0.0);
    return scaling;
  }
  CHECK(type == "yarn");
  scaling.kind = nn::RopeScaling::Kind::kYarn;
  scaling.beta_fast = number("beta_fast", 32.0);
  scaling.beta_slow = number("beta_slow", 1.0);
  scaling.attention_factor = (0.1 * std::log(scaling.factor) + 1.0) * number("attn_factor", 1.0);
  return scaling;
}

void run_long_rope(Ops& ops, const OpVector& vector) {
  const simdjson::dom::element parameters = vector.argument("rope_parameters");
  const bool half = vector.argument("is_neox_style").get_bool();
  const nn::Rope rope({.width = static_cast<int>(parameters["rope_dim"].get_int64().value()),
                       .theta = parameters["rope_theta"].get_double(),
                       .layout = half ? RopeLayout::kHalf : RopeLayout::kInterleaved,
                       .scaling = read_scaling(parameters)});
  expect_rotations(ops, vector, rope);

  // Stored as [position][all cosines, then all sines].
  const std::int64_t positions = vector.shape("cos_sin_cache").front();
  const std::int64_t pairs = rope.pair_count();
  std::vector<std::int32_t> all(static_cast<std::size_t>(positions));
  std::iota(all.begin(), all.end(), 0);
  std::vector<float> filled = zeros(positions * pairs * 2);
  rope.fill(all, view(filled, {positions, pairs, 2}));
  std::vector<float> rearranged;
  for (std::int64_t p = 0; p < positions; ++p) {
    for (const std::int64_t sine : {0, 1}) {
      for (std::int64_t i = 0; i < pairs; ++i) {
        rearranged.push_back(filled[static_cast<std::size_t>((p * pairs + i) * 2 + sine)]);
      }
    }
  }
  vector.expect("cos_sin_cache", rearranged);
}

void run_matmul(Ops& ops, const OpVector& vector) {
  const std::vector<std::int64_t> shape = vector.shape("b");  // [in][out]; Kun packs [out][in]
  const auto cols = static_cast<std::size_t>(shape[0]);
  const auto rows = static_cast<std::size_t>(shape[1]);
  const auto stored = vector.file("b").values<std::uint16_t>();
  std::vector<std::uint16_t> weights(stored.size());
  for (std::size_t c = 0; c < cols; ++c) {
    for (std::size_t r = 0; r < rows; ++r) weights[r * cols + c] = stored[c * rows + r];
  }
  const WeightView weight{.format = WeightFormat::kBF16,
                          .rows = shape[1],
                          .cols = shape[0],
                          .data = std::as_bytes(std::span(weights))};
  const auto packed = ops.pack({&weight, 1});
  ASSERT_TRUE(packed) << packed.error().message();
  std::vector<float> in = vector.floats("a");
  const std::int64_t tokens = std::ssize(in) / shape[0];
  std::vector<float> out = zeros(tokens * shape[1]);
  ops.linear(view(in, {tokens, shape[0]}), **packed, {}, LinearOutput::kStore,
             view(out, {tokens, shape[1]}));
  vector.expect("out", out);
}

void run_embedding(Ops& ops, const OpVector& vector) {
  const NpyFile table = vector.file("table");
  const WeightView weight{.format = WeightFormat::kBF16,
                          .rows = table.shape[0],
                          .cols = table.shape[1],
                          .data = table.bytes};
  const std::vector<Token> ids = vector.integers("ids");
  std::vector<float> out = zeros(std::ssize(ids) * weight.cols);
  ops.embed(ids, weight, view(out, {std::ssize(ids), weight.cols}));
  vector.expect("out", out);
}

void run_silu_gate(Ops& ops, const OpVector& vector) {
  const std::vector<std::int64_t> shape = vector.shape("x");
  std::vector<float> in = vector.floats("x");
  std::vector<float> out = zeros(shape[0] * shape[1] / 2);
  ops.silu_gate(view(in, {shape[0], shape[1]}), view(out, {shape[0], shape[1] / 2}));
  vector.expect("out", out);
}

// A small F32 cache whose blocks are not in order.
struct PagedCache {
  PagedCache(Ops& ops, int width, std::int64_t positions, int block_length) {
    const auto count = static_cast<std::int32_t>((positions + block_length - 1) / block_length);
    for (std::int32_t b = count; b-- > 0;) blocks.push_back(b);
    for (std::int64_t p = 0; p < positions; ++p) {
      const auto block = blocks[static_cast<std::size_t>(p / block_length)];
      slots.push_back(block * block_length + static_cast<std::int32_t>(p % block_length));
    }
    for (CachePlane* plane : {&keys, &values}) {
      *plane = {.dtype = DType::kF32,
                .role = plane == &keys ? CacheRole::kKeys : CacheRole::kValues,
                .width = width,
                .tokens_per_block = block_length,
                .block_count = count};
      memory.push_back(ops.allocate(plane->block_bytes() * count));
      plane->data = memory.back().get();
    }
  }

  CachePlane keys;
  CachePlane values;
  std::vector<std::int32_t> blocks;
  std::vector<std::int32_t> slots;
  std::vector<std::shared_ptr<std::byte>> memory;
};

// The model of these vectors scales by 1 + weight (Gemma's way); Kun's norm takes the whole factor.
std::vector<float> norm_weight(const OpVector& vector, const std::string& tensor) {
  std::vector<float> weight = vector.floats(tensor);
  for (float& value : weight) value += 1.0F;
  return weight;
}

struct AttentionInputs {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t dim = 0;
  float scale = 0.0F;
  std::vector<float> query;
  std::vector<float> key;
  std::vector<float> value;
};

std::vector<float> attend(Ops& ops, AttentionInputs& in, int block_length) {
  const std::int64_t width = in.kv_heads * in.dim;
  const PagedCache cache(ops, static_cast<int>(width), in.tokens, block_length);
  ops.store_cache(view(in.key, {in.tokens, width}), cache.slots, cache.keys);
  ops.store_cache(view(in.value, {in.tokens, width}), cache.slots, cache.values);
  std::vector<float> out = zeros(in.tokens * in.heads * in.dim);
  const AttentionSlice slice{0, static_cast<std::int32_t>(in.tokens), 0, cache.blocks};
  AttentionArguments arguments;
  arguments.query = view(in.query, {in.tokens, in.heads, in.dim});
  arguments.keys = cache.keys;
  arguments.values = cache.values;
  arguments.kv_heads = static_cast<int>(in.kv_heads);
  arguments.scale = in.scale;
  arguments.slices = {&slice, 1};
  arguments.out = view(out, {in.tokens, in.heads, in.dim});
  ops.attention(arguments);
  return out;
}

// `gate` and `out` of these vectors are an output gate, which no model of Kun has.
void run_attention(Ops& ops, const OpVector& vector) {
  const std::vector<std::int32_t> positions = vector.integers("positions");
  const nn::Rope rope({.width = vector.integer("rotary_dim"),
                       .theta = vector.number("base"),
                       .layout = RopeLayout::kHalf,
                       .scaling = {}});
  AttentionInputs in;
  in.tokens = std::ssize(positions);
  in.heads = vector.integer("num_q_heads");
  in.kv_heads = vector.integer("num_kv_heads");
  in.dim = vector.integer("head_dim");
  in.scale = static_cast<float>(vector.number("scale"));
  const auto prepare = [&](const std::string& tensor, std::int64_t heads) {
    std::vector<float> data = vector.floats(tensor);
    std::vector<float> weight = norm_weight(vector, tensor + "_norm_weight");
    const TensorView all = view(data, {in.tokens, heads, in.dim});
    ops.rms_norm(all, view(weight, {in.dim}), static_cast<float>(vector.number("eps")), all);
    rotate(ops, rope, positions, data, heads);
    return data;
  };
  in.query = prepare("q", in.heads);
  in.key = prepare("k", in.kv_heads);
  in.value = vector.floats("v");
  for (const int block_length : {4, 16}) vector.expect("attn", attend(ops, in, block_length));
}

using Runner = void (*)(Ops&, const OpVector&);
const std::map<std::string, Runner> kRunners = {
    {"rmsnorm", run_rms_norm},
    {"rope", run_rope},
    {"long_context_rope", run_long_rope},
    {"matmul", run_matmul},
    {"embedding", run_embedding},
    {"silu_and_mul", run_silu_gate},
    {"dense_attention", run_attention},
    {"moe_router_topk", run_router},
    {"moe_block", run_experts},
};

struct Case {
  std::string vector;
  std::string kernels;
  ComputeType compute = ComputeType::kFloat32;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& vector : kTested) {
    for (const std::string& kernels : cpu_kernel_names()) {
      cases.push_back({vector, kernels, ComputeType::kFloat32});
      // The fast path's BF16 cache is coarser than what the attention vectors ask for.
      if (vector.starts_with("dense_attention")) continue;
      cases.push_back({vector, kernels, ComputeType::kBFloat16});
    }
  }
  return cases;
}

void PrintTo(const Case& value, std::ostream* out) {
  *out << value.vector << " on " << value.kernels;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.vector + "_" + info.param.kernels +
         (info.param.compute == ComputeType::kFloat32 ? "_exact" : "_fast");
}

class OpGolden : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Vectors, OpGolden, testing::ValuesIn(all_cases()), case_name);

TEST_P(OpGolden, Matches) {
  const auto device = open_cpu_device(
      {.thread_count = 2, .kernels = GetParam().kernels, .compute = GetParam().compute});
  ASSERT_TRUE(device) << device.error().message();
  const OpVector vector(GetParam().vector);
  const auto runner = kRunners.find(vector.op());
  ASSERT_NE(runner, kRunners.end()) << "nothing here runs operator " << vector.op();
  runner->second((*device)->ops(), vector);
}

std::set<std::string> folders_of(const fs::path& path) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.is_directory()) names.insert(entry.path().filename().string());
  }
  return names;
}

TEST(OpGoldens, RunsEveryVectorThatIsCopied) {
  EXPECT_EQ(folders_of(op_vector_copies()), kTested);
}

TEST(OpGoldens, RunsOrExplainsEveryVectorThereIs) {
  if (!fs::exists(kOriginals)) GTEST_SKIP() << "no vectors at " << kOriginals;
  std::set<std::string> known = kTested;
  for (const auto& [name, reason] : kNotApplicable) {
    EXPECT_TRUE(known.insert(name).second) << name << " is both run and explained away";
    EXPECT_FALSE(reason.empty()) << name;
  }
  EXPECT_EQ(folders_of(kOriginals), known);
}

// The tiny llama3 model with another high_freq_factor; its low_freq_factor is 1.
Status load_with_high_factor(const std::string& value) {
  const fs::path source = fs::path(KUN_TEST_DATA) / "tiny-models" / "llama-gqa-llama3";
  const fs::path folder = test_folder("llama3_factors");
  fs::copy(source / "model.safetensors", folder / "model.safetensors");
  std::ifstream in(source / "config.json");
  std::string config{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::string key = "\"high_freq_factor\": ";
  const std::size_t at = config.find(key + "4.0,");
  CHECK(at != std::string::npos && config.find("\"low_freq_factor\": 1.0,") != std::string::npos);
  config.replace(at, key.size() + 3, key + value);
  std::ofstream(folder / "config.json") << config;

  ASSIGN_OR_RETURN(const auto device, open_cpu_device({.thread_count = 1}));
  ASSIGN_OR_RETURN(const auto checkpoint, open_checkpoint(folder));
  ASSIGN_OR_RETURN(const auto model,
                   load_model(*checkpoint, device->ops(), {.cache_dtype = DType::kF32}));
  return {};
}

// The same scaling through a configuration file: a model may state equal factors.
TEST(OpGoldens, AcceptsEqualLlama3FactorsAndRefusesCrossedOnes) {
  const Status equal = load_with_high_factor("1.0");
  EXPECT_TRUE(equal.ok()) << equal.message();
  const Status crossed = load_with_high_factor("0.5");
  EXPECT_FALSE(crossed.ok());
  EXPECT_NE(crossed.message().find("high_freq_factor"), std::string::npos) << crossed.message();
}

}  // namespace
}  // namespace kun
