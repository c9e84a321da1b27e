// Goes by what is stored: a model reads all of its matrices, but only the experts that the router
// chooses, and of the embedding a single row.
#include "runtime/weight_plan.h"

#include <charconv>
#include <string>
#include <string_view>

#include "weights/weight_role.h"

namespace kun {
namespace {

constexpr std::string_view kWeight = ".weight";

// The matrix that a stored tensor is the main part of; empty for vectors, scales and the like.
std::string matrix_name(const StoredTensor& tensor) {
  const std::string& name = tensor.name;
  for (const std::string_view codes : {".qweight", ".weight_packed"}) {
    if (name.ends_with(codes)) return name.substr(0, name.size() - codes.size()) + ".weight";
  }
  const bool matrix = tensor.shape.size() == 2 || tensor.shape.size() == 3;
  return matrix && name.ends_with(kWeight) ? name : "";
}

// Whether the tensor belongs to a layer past the model's own (multi-token prediction).
bool is_extra_layer(std::string_view name, int layer_count) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (name.starts_with("mtp.")) return true;
  if (!name.starts_with(kPrefix)) return false;
  int layer = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer >= layer_count;
}

bool is_embedding(std::string_view name) {
  return name == "model.embed_tokens.weight" || name == "embed.weight";
}

bool is_expert(std::string_view name) {
  return name.find(".experts.") != std::string_view::npos;
}

struct Settings {
  int layer_count = 1;
  int expert_count = 1;
  int used_count = 1;
  bool tied = false;
};

Result<Settings> read_settings(const Config& config) {
  Settings settings;
  ConfigReader read(config);
  read.read("num_hidden_layers", settings.layer_count, 1, 4096);
  read.read_or("n_routed_experts", settings.expert_count, 1, 1, 1 << 20);
  read.read_or("num_experts_per_tok", settings.used_count, 1, 1, 1 << 20);
  read.read_or("tie_word_embeddings", settings.tied, false);
  RETURN_IF_ERROR(read.status());
  return settings;
}

// The view of a matrix, of the first slice if it is a stack of `count`.
Result<WeightView> first_view(const Checkpoint& checkpoint, const std::string& name, bool stacked) {
  if (!stacked) return checkpoint.matrix(name);
  const std::size_t end = name.rfind('.', name.size() - kWeight.size() - 1);
  if (end == std::string::npos) return checkpoint.matrix(name);
  return checkpoint.matrix(name.substr(0, end) + ".0" + name.substr(end));
}

}  // namespace

Result<WeightPlan> plan_weights(const Checkpoint& checkpoint, const Ops& ops) {
  ASSIGN_OR_RETURN(const Settings settings, read_settings(checkpoint.config()));
  WeightPlan plan;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const std::string name = matrix_name(tensor);
    if (name.empty() || is_extra_layer(name, settings.layer_count)) continue;
    const bool stacked = tensor.shape.size() == 3;
    ASSIGN_OR_RETURN(WeightView view, first_view(checkpoint, name, stacked));
    if (is_embedding(name)) {
      plan.table_bytes += static_cast<std::int64_t>(view.data.size());
      if (!settings.tied) continue;
    }
    view.role = role_of(name);
    const std::int64_t bytes = ops.packed_bytes(view) * (stacked ? tensor.shape.front() : 1);
    plan.packed_bytes += bytes;
    plan.token_bytes +=
        is_expert(name) ? bytes / settings.expert_count * settings.used_count : bytes;
  }
  return plan;
}

}  // namespace kun
