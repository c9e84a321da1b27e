// Decides what kind of checkpoint a path is; gguf_checkpoint.cc and hugging_face_checkpoint.cc are
// the kinds.
#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/gguf_checkpoint.h"
#include "checkpoint/hugging_face_checkpoint.h"
#include "checkpoint/show_name.h"

namespace kun {
namespace {

namespace fs = std::filesystem;

// "-00002-of-00003.gguf": a part of a split model, and not its first.
bool is_later_part(std::string_view name) {
  constexpr std::string_view kPattern = "-#####-of-#####.gguf";
  if (name.size() < kPattern.size()) return false;
  const std::string_view end = name.substr(name.size() - kPattern.size());
  for (std::size_t i = 0; i < end.size(); ++i) {
    const bool digit = end[i] >= '0' && end[i] <= '9';
    if (kPattern[i] == '#' ? !digit : end[i] != kPattern[i]) return false;
  }
  return end.substr(1, 5) != "00001";
}

// The GGUF models in a folder, a split one counted once; image projectors are none.
Result<std::vector<fs::path>> find_gguf_models(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool model =
        name.ends_with(".gguf") && !name.starts_with("mmproj") && !is_later_part(name);
    if (model) out.push_back(at->path());
  }
  if (error) {
    return not_found(fmt::format("cannot read folder {}: {}", folder.string(), error.message()));
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::unique_ptr<Checkpoint>> open_folder(const fs::path& folder) {
  std::error_code ignored;
  const auto exists = [&](const char* name) { return fs::exists(folder / name, ignored); };
  const bool weights = exists("model.safetensors") || exists("model.safetensors.index.json");
  if (exists("config.json") && weights) return open_hugging_face_checkpoint(folder);
  ASSIGN_OR_RETURN(const std::vector<fs::path> models, find_gguf_models(folder));
  if (models.size() == 1) return open_gguf_checkpoint(folder, models.front());
  if (models.size() > 1) {
    return invalid_argument(
        fmt::format("{} holds {} GGUF models, name one of them: {} or {}", folder.string(),
                    models.size(), models[0].filename().string(), models[1].filename().string()));
  }
  if (exists("config.json")) return open_hugging_face_checkpoint(folder);
  return not_found(
      fmt::format("{} holds no model: neither a config.json nor a GGUF file", folder.string()));
}

std::string shape_error(const fs::path& path, std::string_view name, const std::string& found,
                        const std::string& expected) {
  return fmt::format("{}: tensor {} has the shape {}, the configuration asks for {}", path.string(),
                     show_name(name), found, expected);
}

}  // namespace

Result<WeightView> Checkpoint::matrix(std::string_view name, std::int64_t rows,
                                      std::int64_t cols) const {
  ASSIGN_OR_RETURN(const WeightView view, matrix(name));
  if (view.rows == rows && view.cols == cols) return view;
  return data_loss(shape_error(path(), name, fmt::format("[{}, {}]", view.rows, view.cols),
                               fmt::format("[{}, {}]", rows, cols)));
}

Result<std::vector<float>> Checkpoint::vector(std::string_view name, std::int64_t size) const {
  ASSIGN_OR_RETURN(std::vector<float> values, vector(name));
  if (static_cast<std::int64_t>(values.size()) == size) return values;
  return data_loss(
      shape_error(path(), name, fmt::format("[{}]", values.size()), fmt::format("[{}]", size)));
}

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return not_found(fmt::format("there is no {}", path.string()));
  if (fs::is_directory(status)) return open_folder(path);
  return open_gguf_checkpoint(path, path);
}

}  // namespace kun
