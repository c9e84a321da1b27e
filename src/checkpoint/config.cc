// JSON is parsed with simdjson's DOM, which validates all of it, and flattened into paths. Files
// are small, so simple beats fast; the limits keep a hostile one from growing while it is
// flattened.
#include "checkpoint/config.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <cmath>
#include <optional>

#include "checkpoint/show_name.h"

namespace kun {
namespace {

constexpr std::size_t kJsonBytesMax = 4 * 1024 * 1024;
constexpr std::size_t kValueCountMax = 65536;
constexpr std::size_t kPathBytesMax = 512;
constexpr int kDepthMax = 16;

// `architectures` against `model_type`, for files that state only one of them.
struct Architecture {
  std::string_view model_type;
  std::string_view class_name;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"deepseek", "DeepseekForCausalLM"},
    {"deepseek_v2", "DeepseekV2ForCausalLM"},
    {"deepseek_v3", "DeepseekV3ForCausalLM"},
    {"deepseek_v32", "DeepseekV32ForCausalLM"},
    {"deepseek_v4", "DeepseekV4ForCausalLM"},
    {"deepseek_v41", "DeepseekV41ForCausalLM"},
};

std::optional<double> as_double(const ConfigValue& value) {
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  return std::nullopt;
}

// Whole numbers may be written as 4096.0.
std::optional<std::int64_t> as_int(const ConfigValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return *whole;
  const auto* real = std::get_if<double>(&value);
  constexpr double kExactMax = 9007199254740992.0;  // 2^53
  const bool exact = real != nullptr && std::fabs(*real) <= kExactMax && std::trunc(*real) == *real;
  if (!exact) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

// Turns a DOM into paths and values.
class Flattener {
 public:
  explicit Flattener(Config& config) : config_(config) {}

  // The error, or nothing.
  std::optional<std::string> add(simdjson::dom::object object, const std::string& prefix,
                                 int depth);

 private:
  std::optional<std::string> add_value(std::string path, simdjson::dom::element element, int depth);
  template <class Stored, class Json>
  static std::optional<std::vector<Stored>> list_of(simdjson::dom::array list);
  static ConfigValue list(simdjson::dom::array list);

  Config& config_;
  std::size_t count_ = 0;
};

std::optional<std::string> Flattener::add(simdjson::dom::object object, const std::string& prefix,
                                          int depth) {
  if (depth > kDepthMax) return "nests objects too deeply";
  for (const auto field : object) {
    std::string path = prefix;
    path += field.key;
    if (path.size() > kPathBytesMax) return "has a key that is too long";
    if (++count_ > kValueCountMax) return "has too many keys";
    if (config_.has(path)) return fmt::format("has the key {} twice", show_name(path));
    if (auto error = add_value(std::move(path), field.value, depth)) return error;
  }
  return std::nullopt;
}

std::optional<std::string> Flattener::add_value(std::string path, simdjson::dom::element element,
                                                int depth) {
  using Type = simdjson::dom::element_type;
  switch (element.type()) {
    case Type::NULL_VALUE: break;
    case Type::BOOL: config_.set(std::move(path), bool(element)); break;
    case Type::INT64: config_.set(std::move(path), std::int64_t(element)); break;
    case Type::DOUBLE: config_.set(std::move(path), double(element)); break;
    case Type::UINT64:  // beyond int64
      config_.set(std::move(path), static_cast<double>(std::uint64_t(element)));
      break;
    case Type::STRING: config_.set(std::move(path), std::string(std::string_view(element))); break;
    case Type::ARRAY: config_.set(std::move(path), list(element)); break;
    case Type::OBJECT: {
      const std::string prefix = path + ".";
      config_.set(std::move(path), ConfigOther{});
      return add(element, prefix, depth + 1);
    }
  }
  return std::nullopt;
}

template <class Stored, class Json>
std::optional<std::vector<Stored>> Flattener::list_of(simdjson::dom::array list) {
  std::vector<Stored> out;
  for (const simdjson::dom::element element : list) {
    Json value;
    if (element.get(value) != simdjson::SUCCESS) return std::nullopt;
    out.emplace_back(value);
  }
  return out;
}

ConfigValue Flattener::list(simdjson::dom::array list) {
  if (auto whole = list_of<std::int64_t, std::int64_t>(list)) return *std::move(whole);
  if (auto real = list_of<double, double>(list)) return *std::move(real);
  if (auto text = list_of<std::string, std::string_view>(list)) return *std::move(text);
  return ConfigOther{};
}

}  // namespace

Result<Config> Config::parse(std::string_view json, std::string name) {
  if (json.size() > kJsonBytesMax) {
    return data_loss(fmt::format("{}: the file has {} bytes, at most {} are allowed", name,
                                 json.size(), kJsonBytesMax));
  }
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root)) {
    return data_loss(fmt::format("{}: not valid JSON: {}", name, simdjson::error_message(error)));
  }
  simdjson::dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    return data_loss(fmt::format("{}: the file does not hold a JSON object", name));
  }
  Config config(std::move(name));
  if (const auto error = Flattener(config).add(object, "", 1)) {
    return data_loss(fmt::format("{}: the file {}", config.name(), *error));
  }
  RETURN_IF_ERROR(config.normalize_rope());
  return config;
}

const ConfigValue* Config::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::string> Config::objects_in(std::string_view path) const {
  std::vector<std::string> out = objects_below(path);
  std::erase_if(out, [](const std::string& name) { return name.find('.') != std::string::npos; });
  return out;
}

std::vector<std::string> Config::objects_below(std::string_view path) const {
  const std::string prefix = std::string(path) + ".";
  std::vector<std::string> out;
  for (auto at = values_.lower_bound(prefix); at != values_.end() && at->first.starts_with(prefix);
       ++at) {
    if (std::holds_alternative<ConfigOther>(at->second)) {
      out.push_back(at->first.substr(prefix.size()));
    }
  }
  return out;
}

void Config::erase(std::string_view key) {
  if (const auto found = values_.find(key); found != values_.end()) values_.erase(found);
}

std::string Config::architecture() const {
  if (const ConfigValue* value = find("architectures")) {
    const auto* names = std::get_if<std::vector<std::string>>(value);
    if (names != nullptr && !names->empty()) return names->front();
  }
  const ConfigValue* value = find("model_type");
  const auto* model_type = value == nullptr ? nullptr : std::get_if<std::string>(value);
  if (model_type == nullptr) return "";
  for (const Architecture& known : kArchitectures) {
    if (known.model_type == *model_type) return std::string(known.class_name);
  }
  return *model_type;
}

void Config::copy_if_absent(std::string_view from, std::string_view to) {
  const ConfigValue* value = find(from);
  if (value != nullptr && !has(to)) set(std::string(to), ConfigValue(*value));
}

Status Config::normalize_rope() {
  // transformers 5: rope_parameters holds rope_theta and what used to be in rope_scaling.
  constexpr std::string_view kNewPrefix = "rope_parameters.";
  std::vector<std::string> moved;
  for (auto at = values_.lower_bound(kNewPrefix);
       at != values_.end() && at->first.starts_with(kNewPrefix); ++at) {
    moved.push_back(at->first.substr(kNewPrefix.size()));
  }
  for (const std::string& key : moved) {
    const std::string from = std::string(kNewPrefix) + key;
    copy_if_absent(from, key == "rope_theta" ? key : "rope_scaling." + key);
  }
  copy_if_absent("rope_scaling.type", "rope_scaling.rope_type");

  const ConfigValue* type = find("rope_scaling.rope_type");
  const auto* type_name = type == nullptr ? nullptr : std::get_if<std::string>(type);
  if (type_name == nullptr || *type_name != "yarn") return {};
  return finish_yarn();
}

// What cos and sin are multiplied by. `attention_factor` is Hugging Face's own key and final;
// DeepSeek states two mscale values, of which the ratio counts; otherwise it is 0.1 ln(factor) + 1
// times `attn_factor`, which only some files have (YaRN, arXiv:2309.00071, section 3.4).
Status Config::finish_yarn() {
  ConfigReader reader(*this);
  double factor = 1;
  double mscale = 0;
  double mscale_all_dim = 0;
  double attn_factor = 1;
  reader.read("rope_scaling.factor", factor, 1e-6, 1e9);
  reader.read_or("rope_scaling.mscale", mscale, 0.0);
  reader.read_or("rope_scaling.mscale_all_dim", mscale_all_dim, 0.0);
  reader.read_or("rope_scaling.attn_factor", attn_factor, 1.0);
  if (!reader.status().ok() || has("rope_scaling.attention_factor")) return reader.status();
  const auto scale = [factor](double m) {
    return factor > 1 ? 0.1 * m * std::log(factor) + 1 : 1.0;
  };
  double result = attn_factor * scale(1);
  if (mscale != 0 && mscale_all_dim != 0) result = scale(mscale) / scale(mscale_all_dim);
  if (architecture() == "DeepseekV4ForCausalLM") result = 1;
  set("rope_scaling.attention_factor", result);
  return {};
}

const ConfigValue* ConfigReader::require(std::string_view key) {
  const ConfigValue* value = config_.find(key);
  if (value == nullptr) fail(fmt::format("the key '{}' is missing", key));
  return value;
}

void ConfigReader::wrong_type(std::string_view key, std::string_view expected) {
  fail(fmt::format("the key '{}' must be {}", key, expected));
}

void ConfigReader::fail(std::string_view what) {
  if (status_.ok()) status_ = data_loss(fmt::format("{}: {}", config_.name(), what));
}

void ConfigReader::read(std::string_view key, std::int64_t& value) {
  const ConfigValue* found = require(key);
  if (found == nullptr) return;
  const std::optional<std::int64_t> whole = as_int(*found);
  if (!whole) return wrong_type(key, "a whole number");
  value = *whole;
}

void ConfigReader::read(std::string_view key, int& value, int min, int max) {
  std::int64_t wide = min;
  read(key, wide);
  if (wide < min || wide > max) {
    return fail(fmt::format("the key '{}' is {}, it must lie in {} to {}", key, wide, min, max));
  }
  if (status_.ok()) value = static_cast<int>(wide);
}

void ConfigReader::read(std::string_view key, double& value, double min, double max) {
  const ConfigValue* found = require(key);
  if (found == nullptr) return;
  const std::optional<double> real = as_double(*found);
  if (!real || !std::isfinite(*real)) return wrong_type(key, "a finite number");
  if (*real < min || *real > max) {
    return fail(fmt::format("the key '{}' is {}, it must lie in {} to {}", key, *real, min, max));
  }
  value = *real;
}

void ConfigReader::read(std::string_view key, float& value, float min, float max) {
  double wide = static_cast<double>(value);
  const Status before = status_;
  read(key, wide, static_cast<double>(min), static_cast<double>(max));
  if (before.ok() && status_.ok()) value = static_cast<float>(wide);
}

void ConfigReader::read(std::string_view key, bool& value) {
  const ConfigValue* found = require(key);
  if (found == nullptr) return;
  const auto* flag = std::get_if<bool>(found);
  if (flag == nullptr) return wrong_type(key, "true or false");
  value = *flag;
}

void ConfigReader::read(std::string_view key, std::string& value) {
  const ConfigValue* found = require(key);
  if (found == nullptr) return;
  const auto* text = std::get_if<std::string>(found);
  if (text == nullptr) return wrong_type(key, "a string");
  value = *text;
}

void ConfigReader::read(std::string_view key, std::vector<int>& value, int min, int max) {
  const ConfigValue* found = require(key);
  if (found == nullptr) return;
  const auto* list = std::get_if<std::vector<std::int64_t>>(found);
  if (list == nullptr) return wrong_type(key, "a list of whole numbers");
  std::vector<int> out;
  for (const std::int64_t element : *list) {
    if (element < min || element > max) {
      return fail(fmt::format("the key '{}' has an element {}, it must lie in {} to {}", key,
                              element, min, max));
    }
    out.push_back(static_cast<int>(element));
  }
  value = std::move(out);
}

void ConfigReader::read(std::string_view key, std::vector<float>& value) {
  const ConfigValue* found = require(key);
  if (found == nullptr) return;
  std::vector<float> out;
  if (const auto* reals = std::get_if<std::vector<double>>(found)) {
    for (const double real : *reals) out.push_back(static_cast<float>(real));
  } else if (const auto* wholes = std::get_if<std::vector<std::int64_t>>(found)) {
    for (const std::int64_t whole : *wholes) out.push_back(static_cast<float>(whole));
  } else {
    return wrong_type(key, "a list of numbers");
  }
  for (const float element : out) {
    if (!std::isfinite(element)) return wrong_type(key, "a list of finite numbers");
  }
  value = std::move(out);
}

void ConfigReader::read(std::string_view key, std::vector<std::string>& value) {
  const ConfigValue* found = require(key);
  if (found == nullptr) return;
  if (const auto* list = std::get_if<std::vector<std::string>>(found)) {
    value = *list;
    return;
  }
  const auto* empty = std::get_if<std::vector<std::int64_t>>(found);  // [] parses as one of these
  if (empty == nullptr || !empty->empty()) return wrong_type(key, "a list of strings");
  value.clear();
}

}  // namespace kun
