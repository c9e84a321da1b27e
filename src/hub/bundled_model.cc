// Unpacking goes through a temporary file and a rename, so that a full disk or a kill leaves no
// file that looks whole.
#include "hub/bundled_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <string>

#define KUN_BUNDLED(label)                 \
  extern const char kun_tiny_v3_##label[]; \
  extern const char kun_tiny_v3_##label##_end[]

extern "C" {
KUN_BUNDLED(config);
KUN_BUNDLED(generation_config);
KUN_BUNDLED(tokenizer);
KUN_BUNDLED(tokenizer_config);
KUN_BUNDLED(model);
}

namespace kun {
namespace {

std::string_view between(const char* begin, const char* end) {
  return {begin, static_cast<std::size_t>(end - begin)};
}

std::span<const BundledFile> tiny_v3_files() {
#define KUN_FILE(name, label)                                     \
  BundledFile {                                                   \
    name, between(kun_tiny_v3_##label, kun_tiny_v3_##label##_end) \
  }
  static const std::array files = {
      KUN_FILE("config.json", config),       KUN_FILE("generation_config.json", generation_config),
      KUN_FILE("tokenizer.json", tokenizer), KUN_FILE("tokenizer_config.json", tokenizer_config),
      KUN_FILE("model.safetensors", model),
  };
#undef KUN_FILE
  return files;
}

bool holds(const std::filesystem::path& path, std::string_view bytes) {
  std::error_code error;
  if (std::filesystem::file_size(path, error) != bytes.size() || error) return false;
  std::ifstream in(path, std::ios::binary);
  const std::string found{std::istreambuf_iterator<char>(in), {}};
  return found == bytes;
}

Status write_whole(const std::filesystem::path& path, std::string_view bytes) {
  const std::filesystem::path partial = fmt::format("{}.{}.partial", path.string(), ::getpid());
  std::ofstream out(partial, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  std::error_code error;
  if (out.good()) std::filesystem::rename(partial, path, error);
  if (out.good() && !error) return {};
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
  return resource_exhausted(fmt::format("cannot write {}: {}", path.string(),
                                        error ? error.message() : "the disk took less than all"));
}

}  // namespace

const BundledModel* find_bundled_model(std::string_view name) {
  static const BundledModel tiny_v3 = {.name = "kun-tiny-v3", .files = tiny_v3_files()};
  return name == tiny_v3.name ? &tiny_v3 : nullptr;
}

Result<PulledModel> unpack_bundled_model(const BundledModel& model,
                                         const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return internal_error(fmt::format("cannot create {}: {}", folder.string(), error.message()));
  }
  PulledModel pulled = {.path = folder, .files = {}, .fetched_bytes = 0};
  for (const BundledFile& file : model.files) {
    pulled.files.emplace_back(file.name);
    if (holds(folder / file.name, file.bytes)) continue;
    RETURN_IF_ERROR(write_whole(folder / file.name, file.bytes));
  }
  return pulled;
}

}  // namespace kun
