#include "runtime/chat_template_file.h"

#include <fmt/format.h>
#include <simdjson.h>

#include "base/mapped_file.h"

namespace kun {
namespace {

constexpr std::size_t kTemplateBytesMax = std::size_t{4} << 20U;

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// "chat_template" of tokenizer_config.json, in either of its forms.
std::optional<std::string> template_in(simdjson::dom::element config) {
  simdjson::dom::element value;
  std::string_view text;
  if (config["chat_template"].get(value) != simdjson::SUCCESS) return std::nullopt;
  if (value.get(text) == simdjson::SUCCESS) return std::string(text);
  simdjson::dom::array named;
  if (value.get(named) != simdjson::SUCCESS) return std::nullopt;
  for (const simdjson::dom::element entry : named) {
    std::string_view name;
    if (entry["name"].get(name) != simdjson::SUCCESS || name != "default") continue;
    if (entry["template"].get(text) == simdjson::SUCCESS) return std::string(text);
  }
  return std::nullopt;
}

}  // namespace

Result<std::optional<std::string>> read_chat_template(const std::filesystem::path& folder) {
  std::error_code ignored;
  const auto jinja = folder / "chat_template.jinja";
  if (std::filesystem::exists(jinja, ignored)) {
    ASSIGN_OR_RETURN(const auto file, MappedFile::open(jinja));
    if (file->bytes().size() > kTemplateBytesMax) {
      return data_loss(fmt::format("{} is over 4 MiB: no chat template is", jinja.string()));
    }
    return std::optional(std::string(text_of(*file)));
  }
  const auto config = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(config, ignored)) return std::optional<std::string>();
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(config));
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(text_of(*file)).get(root); error != simdjson::SUCCESS) {
    return data_loss(
        fmt::format("{} is not JSON: {}", config.string(), simdjson::error_message(error)));
  }
  return template_in(root);
}

std::optional<std::string> find_chat_template(const GgufFile& file) {
  const auto found = file.find_string("tokenizer.chat_template");
  if (!found || found->size() > kTemplateBytesMax) return std::nullopt;
  return std::string(*found);
}

}  // namespace kun
