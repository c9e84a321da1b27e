// The hub's file lists are JSON from the network: sizes, digests and paths are checked here, and
// nothing downstream sees one that was not.
#include "hub/file_list.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <simdjson.h>

#include <algorithm>
#include <set>

#include "hub/hub_paths.h"

namespace kun {
namespace {

constexpr std::size_t kFilesMax = 50'000;
constexpr std::size_t kChoicesShownMax = 20;
constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 44U;  // 16 TiB

bool is_hex(std::string_view text, std::size_t size) {
  return text.size() == size &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Status bad_list(std::string_view why) {
  return data_loss(fmt::format("the hub's list of files cannot be read: {}", why));
}

// {"type": "file", "path": ..., "size": ..., "oid": blob id, "lfs": {"oid": sha256, "size": ...}}
Status add_entry(simdjson::dom::element entry, std::vector<HubFile>& files) {
  std::string_view type, path, oid;
  if (entry["type"].get(type) != simdjson::SUCCESS) return bad_list("an entry has no type");
  if (type != "file") return {};
  HubFile file;
  if (entry["path"].get(path) != simdjson::SUCCESS) return bad_list("a file has no path");
  RETURN_IF_ERROR(check_file_path(path));
  file.path = path;
  simdjson::dom::object lfs;
  if (entry["lfs"].get(lfs) == simdjson::SUCCESS) {
    if (lfs["oid"].get(oid) != simdjson::SUCCESS || lfs["size"].get(file.bytes) != 0) {
      return bad_list(fmt::format("{} has no size or digest", path));
    }
    if (oid.starts_with("sha256:")) oid.remove_prefix(7);
    if (!is_hex(oid, 64)) return bad_list(fmt::format("{} has a strange digest", path));
    file.digest_kind = DigestKind::kSha256;
    file.digest = oid;
  } else if (entry["size"].get(file.bytes) != simdjson::SUCCESS) {
    return bad_list(fmt::format("{} has no size", path));
  } else if (entry["oid"].get(oid) == simdjson::SUCCESS && is_hex(oid, 40)) {
    file.digest_kind = DigestKind::kGitBlob;
    file.digest = oid;
  }
  if (file.bytes > kFileBytesMax) return bad_list(fmt::format("{} is too large", path));
  file.bytes_known = true;
  files.push_back(std::move(file));
  return files.size() <= kFilesMax ? Status() : bad_list("it is too long");
}

bool ends_with(const HubFile& file, std::string_view suffix) {
  return std::string_view(file.path).ends_with(suffix);
}

bool is_at_root(const HubFile& file) {
  return file.path.find('/') == std::string::npos;
}

bool is_configuration(const HubFile& file) {
  static const std::set<std::string_view> kNames = {
      "config.json",
      "generation_config.json",
      "tokenizer.json",
      "tokenizer.model",
      "tokenizer_config.json",
      "special_tokens_map.json",
      "added_tokens.json",
      "vocab.json",
      "merges.txt",
      "chat_template.jinja",
      "chat_template.json",
      "quantize_config.json",
      "quant_config.json",
      "hf_quant_config.json",
  };
  return kNames.contains(file.path);
}

// "m-00002-of-00005.gguf" belongs to "m.gguf"; -1 for what is no part.
std::pair<std::string, int> gguf_model(const std::string& path) {
  constexpr std::size_t kPartBytes = sizeof("-00001-of-00005.gguf") - 1;
  if (path.size() > kPartBytes) {
    const std::string_view part = std::string_view(path).substr(path.size() - kPartBytes);
    const auto digits = [&](std::size_t at) {
      return part.substr(at, 5).find_first_not_of("0123456789") == std::string_view::npos;
    };
    if (part[0] == '-' && part.substr(6, 4) == "-of-" && digits(1) && digits(10)) {
      return {path.substr(0, path.size() - kPartBytes) + ".gguf",
              std::stoi(std::string(part.substr(1, 5)))};
    }
  }
  return {path, -1};
}

Status check_one_gguf(const std::vector<HubFile>& files) {
  std::set<std::string> models;
  for (const HubFile& file : files) {
    if (ends_with(file, ".gguf")) models.insert(gguf_model(file.path).first);
  }
  if (models.size() <= 1) return {};
  std::string list;
  std::size_t shown = 0;
  for (const std::string& model : models) {
    if (++shown > kChoicesShownMax) break;
    list += "\n  " + model;
  }
  const std::string more = models.size() > kChoicesShownMax ? "\n  ..." : "";
  return invalid_argument(fmt::format("there are {} GGUF models, choose one with --file:{}{}",
                                      models.size(), list, more));
}

std::vector<HubFile> needed_files(const std::vector<HubFile>& files) {
  const auto any = [&](auto matches) { return std::any_of(files.begin(), files.end(), matches); };
  const auto is_weights = [](const HubFile& f) {
    return is_at_root(f) &&
           (ends_with(f, ".safetensors") || ends_with(f, ".safetensors.index.json"));
  };
  // "consolidated" files hold the same weights once more, under other names.
  const auto is_copy = [](const HubFile& f) { return f.path.starts_with("consolidated"); };
  const bool has_safetensors = any([&](const HubFile& f) { return is_weights(f); });
  const bool has_original = any([&](const HubFile& f) { return is_weights(f) && !is_copy(f); });
  std::vector<HubFile> needed;
  for (const HubFile& file : files) {
    const bool weights = has_safetensors ? is_weights(file) && !(has_original && is_copy(file))
                                         : ends_with(file, ".gguf");
    if (weights || is_configuration(file)) needed.push_back(file);
  }
  return needed;
}

}  // namespace

Status parse_tree_page(std::string_view json, std::vector<HubFile>& files) {
  simdjson::dom::parser parser;
  simdjson::dom::array entries;
  if (parser.parse(json.data(), json.size()).get(entries) != simdjson::SUCCESS) {
    return bad_list("it is not a JSON array");
  }
  for (const simdjson::dom::element entry : entries) RETURN_IF_ERROR(add_entry(entry, files));
  return {};
}

Result<std::vector<HubFile>> parse_siblings(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::array siblings;
  if (parser.parse(json.data(), json.size())["siblings"].get(siblings) != simdjson::SUCCESS) {
    return bad_list("it has no siblings");
  }
  std::vector<HubFile> files;
  for (const simdjson::dom::element sibling : siblings) {
    std::string_view path;
    if (sibling["rfilename"].get(path) != simdjson::SUCCESS) return bad_list("a file has no name");
    RETURN_IF_ERROR(check_file_path(path));
    HubFile file;
    file.path = path;
    files.push_back(std::move(file));
    if (files.size() > kFilesMax) return bad_list("it is too long");
  }
  return files;
}

Result<std::vector<HubFile>> select_files(const std::vector<HubFile>& files,
                                          const std::string& pattern) {
  std::vector<HubFile> selected;
  if (pattern.empty()) {
    selected = needed_files(files);
  } else {
    std::copy_if(files.begin(), files.end(), std::back_inserter(selected), [&](const HubFile& f) {
      return ::fnmatch(pattern.c_str(), f.path.c_str(), 0) == 0;
    });
  }
  RETURN_IF_ERROR(check_one_gguf(selected));
  const bool has_weights = std::any_of(selected.begin(), selected.end(), [](const HubFile& f) {
    return ends_with(f, ".gguf") || ends_with(f, ".safetensors");
  });
  if (pattern.empty() && !has_weights) {
    return not_found("the repository has neither safetensors nor GGUF files");
  }
  if (selected.empty()) return not_found(fmt::format("no file matches '{}'", pattern));
  std::sort(selected.begin(), selected.end(),
            [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return selected;
}

}  // namespace kun
