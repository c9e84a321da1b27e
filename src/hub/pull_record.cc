// The record is written beside and renamed over, so that a crash leaves the old one.
#include "hub/pull_record.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace kun {
namespace {

constexpr std::size_t kLinesMax = 100'000;
constexpr const char* kFileName = ".kun-pull";

}  // namespace

PullRecord::PullRecord(const std::filesystem::path& folder)
    : folder_(folder), path_(folder / kFileName) {
  std::ifstream file(path_);
  for (std::string text; lines_.size() < kLinesMax && std::getline(file, text);) {
    std::istringstream fields(text);
    Line line;
    std::string path;
    if (fields >> line.digest >> line.bytes && fields.get() == ' ' && std::getline(fields, path)) {
      lines_[path] = line;
    }
  }
}

bool PullRecord::holds(const HubFile& file) const {
  const auto found = lines_.find(file.path);
  if (found == lines_.end() || file.digest_kind == DigestKind::kNone) return false;
  if (found->second.digest != file.digest || found->second.bytes != file.bytes) return false;
  std::error_code error;
  const auto bytes = std::filesystem::file_size(folder_ / file.path, error);
  return !error && bytes == file.bytes;
}

Status PullRecord::add(const HubFile& file) {
  if (file.digest_kind == DigestKind::kNone) return {};
  lines_[file.path] = {.digest = file.digest, .bytes = file.bytes};
  const std::filesystem::path fresh = path_.string() + ".new";
  {
    std::ofstream out(fresh, std::ios::trunc);
    for (const auto& [path, line] : lines_) {
      out << line.digest << ' ' << line.bytes << ' ' << path << '\n';
    }
    out.flush();
    if (!out.good()) return internal_error(fmt::format("cannot write {}", fresh.string()));
  }
  std::error_code error;
  std::filesystem::rename(fresh, path_, error);
  if (error) {
    return internal_error(fmt::format("cannot write {}: {}", path_.string(), error.message()));
  }
  return {};
}

}  // namespace kun
