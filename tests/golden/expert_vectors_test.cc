// Runs the vectors of routing and of whole blocks of experts.
#include "op_vector.h"

namespace kun {
namespace {

TensorView integer_view(std::vector<std::int32_t>& data,
                        std::initializer_list<std::int64_t> shape) {
  return {reinterpret_cast<std::byte*>(data.data()), DType::kI32, shape};
}

struct Routes {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

Routes route(Ops& ops, const OpVector& vector, std::vector<float> logits) {
  CHECK(vector.argument("scoring_func").get_string().value() == "softmax");
  const std::int64_t experts = vector.integer("num_experts");
  const std::int64_t tokens = std::ssize(logits) / experts;
  const std::int64_t chosen = vector.integer("top_k");
  Routes routes{std::vector<std::int32_t>(static_cast<std::size_t>(tokens * chosen)),
                zeros(tokens * chosen)};
  ops.route({.logits = view(logits, {tokens, experts}),
             .bias = {},
             .given = {},
             .score = GateScore::kSoftmax,
             .normalize = vector.argument("renormalize").get_bool(),
             .experts = integer_view(routes.experts, {tokens, chosen}),
             .weights = view(routes.weights, {tokens, chosen})});
  EXPECT_EQ(routes.experts, vector.file("topk_ids").values<std::int32_t>());
  vector.expect("topk_weights", routes.weights);
  return routes;
}

std::unique_ptr<PackedMatrix> pack_rows(Ops& ops, const std::vector<float>& values,
                                        std::int64_t first_row, std::int64_t rows,
                                        std::int64_t cols, bool gate_up) {
  const std::int64_t half = gate_up ? rows / 2 : rows;
  std::vector<WeightView> views;
  for (std::int64_t row = 0; row < rows; row += half) {
    WeightView part;
    part.rows = half;
    part.cols = cols;
    part.data = std::as_bytes(std::span(values).subspan(
        static_cast<std::size_t>((first_row + row) * cols), static_cast<std::size_t>(half * cols)));
    views.push_back(part);
  }
  auto packed = ops.pack(views);
  CHECK(packed);
  return *std::move(packed);
}

struct Mlps {
  std::vector<std::unique_ptr<PackedMatrix>> matrices;
  std::vector<ExpertWeights> table;

  void add(Ops& ops, const std::vector<float>& gate_up, const std::vector<float>& down,
           std::int64_t index, std::int64_t hidden, std::int64_t inner) {
    matrices.push_back(pack_rows(ops, gate_up, index * 2 * inner, 2 * inner, hidden, true));
    matrices.push_back(pack_rows(ops, down, index * hidden, hidden, inner, false));
    table.push_back({matrices[matrices.size() - 2].get(), matrices.back().get()});
  }
};

}  // namespace

void run_router(Ops& ops, const OpVector& vector) {
  route(ops, vector, vector.floats("logits"));
}

// The shared expert of these vectors has a gate of its own, which no model of Kun has: it runs here
// as an expert whose weight is that gate.
void run_experts(Ops& ops, const OpVector& vector) {
  std::vector<float> in = vector.floats("x");
  const std::int64_t hidden = vector.integer("hidden");
  const std::int64_t tokens = std::ssize(in) / hidden;
  Routes routes = route(ops, vector, vector.floats("router_logits"));

  Mlps routed;
  const std::vector<float> gate_up = vector.floats("w13");
  const std::vector<float> down = vector.floats("w2");
  for (int e = 0; e < vector.integer("num_experts"); ++e) {
    routed.add(ops, gate_up, down, e, hidden, vector.integer("moe_intermediate"));
  }
  std::vector<float> out = zeros(tokens * hidden);
  ExpertArguments arguments;
  arguments.in = view(in, {tokens, hidden});
  arguments.experts = integer_view(routes.experts, {tokens, vector.integer("top_k")});
  arguments.weights = view(routes.weights, {tokens, vector.integer("top_k")});
  arguments.table = routed.table;
  arguments.out = view(out, {tokens, hidden});
  ops.experts(arguments);
  vector.expect("routed_out", out);

  Mlps shared;
  shared.add(ops, vector.floats("w_shared_gate_up"), vector.floats("w_shared_down"), 0, hidden,
             vector.integer("shared_intermediate"));
  const std::vector<float> gate = vector.floats("w_shared_gate");
  std::vector<float> gates;
  for (std::int64_t t = 0; t < tokens; ++t) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < hidden; ++i) {
      sum += static_cast<double>(in[static_cast<std::size_t>(t * hidden + i)]) *
             static_cast<double>(gate[static_cast<std::size_t>(i)]);
    }
    gates.push_back(static_cast<float>(1.0 / (1.0 + std::exp(-sum))));
  }
  std::vector<std::int32_t> first(static_cast<std::size_t>(tokens), 0);
  arguments.experts = integer_view(first, {tokens, 1});
  arguments.weights = view(gates, {tokens, 1});
  arguments.table = shared.table;
  ops.experts(arguments);
  vector.expect("out", out);
}

}  // namespace kun
