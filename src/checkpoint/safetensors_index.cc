// Only weight_map counts. A large model has about 100,000 names, so simdjson's On Demand parser.
#include "checkpoint/safetensors_index.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <utility>

#include "checkpoint/show_name.h"

namespace kun {
namespace {

namespace json = simdjson::ondemand;

constexpr std::size_t kIndexBytesMax = 64 * 1024 * 1024;

bool is_plain_file_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view text,
                                                                   std::string_view name) {
  const auto bad = [name](std::string_view what) {
    return data_loss(fmt::format("{}: {}", name, what));
  };
  if (text.size() > kIndexBytesMax) return bad("the file is too large for an index of tensors");
  const simdjson::padded_string padded(text);
  json::parser parser;
  json::document document;
  json::object map;
  if (parser.iterate(padded).get(document) != simdjson::SUCCESS ||
      document["weight_map"].get_object().get(map) != simdjson::SUCCESS) {
    return bad("the file has no map 'weight_map', or is not valid JSON");
  }
  std::map<std::string, std::string> out;
  for (auto result : map) {
    json::field field;
    std::string_view key;
    std::string_view file;
    if (std::move(result).get(field) != simdjson::SUCCESS ||
        field.unescaped_key().get(key) != simdjson::SUCCESS) {
      return bad("the file is not valid JSON");
    }
    std::string tensor(key);
    if (field.value().get_string().get(file) != simdjson::SUCCESS || !is_plain_file_name(file)) {
      return bad(fmt::format("tensor {} does not name a .safetensors file of the same folder",
                             show_name(tensor)));
    }
    const auto [place, is_new] = out.emplace(std::move(tensor), file);
    if (!is_new) return bad(fmt::format("tensor {} appears twice", show_name(place->first)));
  }
  if (out.empty()) return bad("the file names no tensors");
  return out;
}

}  // namespace kun
