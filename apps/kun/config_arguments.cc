#include "config_arguments.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <exception>
#include <string_view>

namespace kun {
namespace {

constexpr std::string_view kFlag = "--config";

bool is_given(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::ranges::any_of(arguments, [&flag](const std::string& argument) {
    return argument == flag || argument.starts_with(flag + "=");
  });
}

// The words that one entry of the file stands for.
std::vector<std::string> words_of(const std::string& flag, const YAML::Node& value) {
  if (value.IsSequence()) {
    std::vector<std::string> words{flag};
    for (const YAML::Node& entry : value) words.push_back(entry.as<std::string>());
    return words;
  }
  const auto text = value.as<std::string>();
  if (text == "true") return {flag};
  if (text == "false") return {};
  return {flag, text};
}

Result<std::vector<std::string>> read_config(const std::string& path,
                                             const std::vector<std::string>& given) {
  std::vector<std::string> words;
  std::string model;
  try {
    const YAML::Node root = YAML::LoadFile(path);
    if (!root.IsMap()) {
      return invalid_argument(fmt::format("{} is no mapping of flags to values", path));
    }
    for (const auto& entry : root) {
      const auto name = entry.first.as<std::string>();
      if (name == "model") {
        model = entry.second.as<std::string>();
        continue;
      }
      std::string flag = "--" + name;
      std::ranges::replace(flag, '_', '-');
      if (is_given(given, flag)) continue;
      for (std::string& word : words_of(flag, entry.second)) words.push_back(std::move(word));
    }
  } catch (const std::exception& error) {  // yaml-cpp's own, and what its stream throws
    return invalid_argument(fmt::format("{} cannot be read: {}", path, error.what()));
  }
  // "kun serve --config FILE": the model may be named in the file alone.
  if (!model.empty() && (given.size() < 2 || given[1].starts_with("-"))) {
    words.insert(words.begin(), model);
  }
  return words;
}

}  // namespace

Result<std::vector<std::string>> expand_config_arguments(std::vector<std::string> arguments) {
  const auto flag = std::ranges::find_if(arguments, [](const std::string& argument) {
    return argument == kFlag || argument.starts_with(std::string(kFlag) + "=");
  });
  if (flag == arguments.end()) return arguments;
  std::string path;
  auto end = flag + 1;
  if (flag->size() > kFlag.size()) {
    path = flag->substr(kFlag.size() + 1);
  } else if (end != arguments.end()) {
    path = *end++;
  } else {
    return invalid_argument("--config needs a file");
  }
  const auto place = arguments.erase(flag, end) - arguments.begin();
  ASSIGN_OR_RETURN(const std::vector<std::string> words, read_config(path, arguments));
  arguments.insert(arguments.begin() + place, words.begin(), words.end());
  return arguments;
}

}  // namespace kun
