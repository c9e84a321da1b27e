// A model's configuration under Hugging Face names, whatever file it came from: config.json, or the
// metadata of a GGUF file in translation.
//
// Nested keys are paths: "rope_scaling.factor". Spellings that differ between versions are one
// here: "rope_scaling.rope_type" also when the file says "type" or "rope_parameters", and for YaRN
// "rope_scaling.attention_factor" is always there and final (what cos and sin are multiplied by).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace kun {

struct ConfigOther {};  // an object, or an array of mixed or nested things: there, but no value
using ConfigValue =
    std::variant<ConfigOther, bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                 std::vector<double>, std::vector<std::string>>;

class Config {
 public:
  // Parses JSON text; `name` is what errors call the file.
  static Result<Config> parse(std::string_view json, std::string name);

  // An empty configuration, to be filled by set().
  explicit Config(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  // The name of the model's class, which picks its implementation: "LlamaForCausalLM". Taken from
  // `architectures`, else from `model_type`; empty when the file has neither.
  std::string architecture() const;

  bool has(std::string_view key) const { return find(key) != nullptr; }  // false for null, too
  const ConfigValue* find(std::string_view key) const;
  // The keys of the object at `path` that hold objects themselves, in order.
  std::vector<std::string> objects_in(std::string_view path) const;
  // All objects below `path`, by what follows it. Dots in keys and between them look the same.
  std::vector<std::string> objects_below(std::string_view path) const;
  void set(std::string key, ConfigValue value) { values_[std::move(key)] = std::move(value); }
  void erase(std::string_view key);

  // Brings the spellings of RoPE settings to the one form described above.
  Status normalize_rope();

 private:
  void copy_if_absent(std::string_view from, std::string_view to);
  Status finish_yarn();

  std::string name_;
  std::map<std::string, ConfigValue, std::less<>> values_;
};

// Reads a Config field by field. The first problem sticks, so a model can read all of its fields in
// a row and ask once, at the end, whether that went well. A field that failed keeps its value.
class ConfigReader {
 public:
  // Requires: `config` outlives the reader.
  explicit ConfigReader(const Config& config) : config_(config) {}

  bool has(std::string_view key) const { return config_.has(key); }

  // Required fields; [min, max] is what the value must lie in.
  void read(std::string_view key, int& value, int min = kIntMin, int max = kIntMax);
  void read(std::string_view key, std::int64_t& value);
  void read(std::string_view key, float& value, float min = -kFloatMax, float max = kFloatMax);
  void read(std::string_view key, double& value, double min = -kDoubleMax, double max = kDoubleMax);
  void read(std::string_view key, bool& value);
  void read(std::string_view key, std::string& value);
  // Every element must lie in [min, max].
  void read(std::string_view key, std::vector<int>& value, int min = kIntMin, int max = kIntMax);
  void read(std::string_view key, std::vector<float>& value);
  void read(std::string_view key, std::vector<std::string>& value);

  // As read(), or `fallback` when the key is absent or null.
  template <class T, class... Range>
  void read_or(std::string_view key, T& value, std::type_identity_t<T> fallback, Range... range) {
    value = std::move(fallback);
    if (has(key)) read(key, value, range...);
  }

  // Makes `what` the problem unless there is one already: "hidden_size must be even".
  void fail(std::string_view what);

  const Status& status() const { return status_; }

 private:
  static constexpr int kIntMin = std::numeric_limits<int>::min();
  static constexpr int kIntMax = std::numeric_limits<int>::max();
  static constexpr float kFloatMax = std::numeric_limits<float>::max();
  static constexpr double kDoubleMax = std::numeric_limits<double>::max();

  const ConfigValue* require(std::string_view key);
  void wrong_type(std::string_view key, std::string_view expected);

  const Config& config_;
  Status status_;
};

}  // namespace kun
