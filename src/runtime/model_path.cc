// Where a model that is given by name lies.
#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "base/kun_home.h"
#include "runtime/model_bundle.h"

namespace kun {
namespace {

// A folder that holds one GGUF file and no configuration stands for that file.
std::filesystem::path only_gguf_in(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".gguf") found.push_back(entry.path());
  }
  const bool has_config = std::filesystem::exists(folder / "config.json", error);
  return found.size() == 1 && !has_config ? found.front() : folder;
}

}  // namespace

Result<std::string> resolve_model(const std::string& model) {
  std::error_code error;
  if (model.empty()) return invalid_argument("the name of the model is empty");
  if (model.starts_with("script:")) return model;
  if (std::filesystem::exists(model, error)) return model;
  const std::filesystem::path pulled = kun_home() / "models" / model;
  const bool is_plain = model.find("..") == std::string::npos && !model.starts_with('/');
  if (is_plain && std::filesystem::exists(pulled, error)) return only_gguf_in(pulled).string();
  return not_found(
      fmt::format("no model '{}': there is no such file or folder, and none under {}; `kun pull "
                  "org/name` fetches one, `./run.sh` the default one",
                  model, (kun_home() / "models").string()));
}

}  // namespace kun
