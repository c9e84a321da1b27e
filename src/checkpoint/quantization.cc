// Keys: transformers' quantization configs, AutoGPTQ's and AutoAWQ's READMEs, compressed-tensors'
// config/base.py and quantization/quant_args.py, and DeepSeek's README_WEIGHTS.md.
#include "checkpoint/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "checkpoint/show_name.h"

namespace kun {
namespace {

constexpr int kGroupColumnsMax = 1 << 24;
constexpr int kSchemeCountMax = 64;

// Reads keys under a prefix.
class Keys {
 public:
  Keys(const Config& config, std::string prefix)
      : config_(config), reader_(config), prefix_(prefix.empty() ? "" : prefix + ".") {}

  std::string path(std::string_view key) const { return prefix_ + std::string(key); }
  bool has(std::string_view key) const { return config_.has(path(key)); }
  template <class T, class... Range>
  void read(std::string_view key, T& value, T fallback, Range... range) {
    reader_.read_or(path(key), value, std::move(fallback), range...);
  }
  void fail(std::string_view key, std::string_view what) {
    reader_.fail(fmt::format("the key '{}' {}", path(key), what));
  }
  // Fails unless `value` is one of `allowed`.
  template <std::size_t count>
  void expect(std::string_view key, const std::string& value,
              const std::array<std::string_view, count>& allowed) {
    if (std::ranges::find(allowed, value) != allowed.end()) return;
    std::string list;
    for (const std::string_view name : allowed)
      list += fmt::format("{}{}", list.empty() ? "" : ", ", name);
    fail(key,
         fmt::format("is {}, which is not supported; supported are: {}", show_name(value), list));
  }
  void read_bits(std::string_view key, int& bits) {
    read(key, bits, 4, 1, 32);
    if (bits != 4 && bits != 8) fail(key, fmt::format("is {}, only 4 and 8 are supported", bits));
  }
  // -1 or absent: all columns.
  void read_group(std::string_view key, int fallback, QuantScheme& scheme) {
    int group = fallback;
    read(key, group, fallback, -1, kGroupColumnsMax);
    if (group == 0) fail(key, "is 0, it must be positive or -1");
    scheme.strategy = group > 0 ? ScaleStrategy::kGroup : ScaleStrategy::kChannel;
    scheme.group_columns = std::max(group, 0);
  }
  const Config& config() const { return config_; }
  const Status& status() const { return reader_.status(); }

 private:
  const Config& config_;
  ConfigReader reader_;
  std::string prefix_;
};

// GPTQModel's rules for layers by regular expressions: "-:" leaves them as they were, which their
// tensors show; any other sets them apart.
void check_dynamic(Keys& keys) {
  for (const std::string& rule : keys.config().objects_below(keys.path("dynamic"))) {
    if (rule.starts_with("-:")) continue;
    return keys.fail("dynamic", fmt::format("overrides the settings of single layers by {}, which "
                                            "is not supported",
                                            show_name(rule)));
  }
}

void read_gptq(Keys& keys, Quantization& out) {
  QuantScheme scheme;
  std::string format;
  keys.read_bits("bits", scheme.bits);
  keys.read_group("group_size", 128, scheme);
  keys.read("desc_act", scheme.needs_group_index, false);
  keys.read("sym", scheme.symmetric, true);
  const char* format_key = keys.has("checkpoint_format") ? "checkpoint_format" : "format";
  keys.read(format_key, format, std::string("gptq"));
  keys.expect(format_key, format, std::array<std::string_view, 2>{"gptq", "gptq_v2"});
  check_dynamic(keys);
  out.stored_zero_offset = format == "gptq" ? 1 : 0;
  out.schemes.push_back(scheme);
}

void read_awq(Keys& keys, Quantization& out) {
  QuantScheme scheme;
  std::string version;
  bool zero_point = true;
  keys.read_bits("bits", scheme.bits);
  if (scheme.bits == 8) keys.fail("bits", "is 8, AWQ has only 4");
  keys.read_group("group_size", 128, scheme);
  keys.read("version", version, std::string("gemm"));
  std::ranges::transform(version, version.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  keys.expect("version", version, std::array<std::string_view, 1>{"gemm"});
  keys.read("zero_point", zero_point, true);
  scheme.symmetric = !zero_point;
  out.schemes.push_back(scheme);
}

void read_fp8(Keys& keys, Quantization& out) {
  QuantScheme scheme;
  scheme.is_float = true;
  std::string format;
  std::vector<int> block;
  keys.read("fmt", format, std::string("e4m3"));
  keys.expect("fmt", format, std::array<std::string_view, 2>{"e4m3", "float8_e4m3fn"});
  if (keys.has("weight_block_size")) {
    keys.read("weight_block_size", block, std::vector<int>{}, 1, 65536);
    if (block.size() == 2) {
      scheme.strategy = ScaleStrategy::kBlock;
      scheme.block_rows = block[0];
      scheme.group_columns = block[1];
    } else {
      keys.fail("weight_block_size", "must be a pair of sizes");
    }
    out.schemes.push_back(scheme);
    return;
  }
  out.schemes.push_back(scheme);
  scheme.strategy = ScaleStrategy::kChannel;
  out.schemes.push_back(scheme);
}

void read_strategy(Keys& keys, QuantScheme& scheme) {
  std::string strategy;
  keys.read("strategy", strategy, std::string(keys.has("group_size") ? "group" : "tensor"));
  if (strategy == "channel") {
    scheme.strategy = ScaleStrategy::kChannel;
  } else if (strategy == "group" || strategy == "tensor_group") {
    keys.read_group("group_size", -1, scheme);
  } else if (strategy == "block") {
    std::vector<int> block;
    keys.read("block_structure", block, std::vector<int>{128, 128}, 1, 65536);
    if (block.size() != 2) return keys.fail("block_structure", "must be a pair of sizes");
    scheme.strategy = ScaleStrategy::kBlock;
    scheme.block_rows = block[0];
    scheme.group_columns = block[1];
  } else {
    keys.expect("strategy", strategy, std::array<std::string_view, 1>{"tensor"});
  }
}

void read_compressed_group(Keys& keys, Quantization& out) {
  QuantScheme scheme;
  std::string type;
  std::string order;
  keys.read_bits("num_bits", scheme.bits);
  keys.read("type", type, std::string("int"));
  keys.expect("type", type, std::array<std::string_view, 2>{"int", "float"});
  scheme.is_float = type == "float";
  keys.read("symmetric", scheme.symmetric, true);
  read_strategy(keys, scheme);
  // null, "static" and "weight" leave the groups where they were; "group" reorders the columns.
  bool dynamic_order = false;
  if (keys.has("actorder")) {
    const ConfigValue* value = keys.config().find(keys.path("actorder"));
    if (std::holds_alternative<bool>(*value)) {
      keys.read("actorder", dynamic_order, false);
    } else {
      keys.read("actorder", order, std::string());
      keys.expect("actorder", order,
                  std::array<std::string_view, 4>{"group", "weight", "static", "dynamic"});
    }
  }
  scheme.needs_group_index = dynamic_order || order == "group" || order == "dynamic";
  out.schemes.push_back(scheme);
}

Status read_compressed(const Config& config, const std::string& prefix, Quantization& out) {
  Keys keys(config, prefix);
  constexpr std::array<std::string_view, 8> kFormats{
      "pack-quantized",  "int-quantized",        "float-quantized",      "naive-quantized",
      "mixed-precision", "mxfp4-pack-quantized", "nvfp4-pack-quantized", "dense"};
  std::string format;
  keys.read("format", format, std::string("dense"));
  keys.expect("format", format, kFormats);
  std::string sparsity;
  keys.read("sparsity_config.format", sparsity, std::string("dense"));
  keys.expect("sparsity_config.format", sparsity, std::array<std::string_view, 1>{"dense"});
  if (!config.objects_in(keys.path("transform_config.config_groups")).empty()) {
    keys.fail("transform_config", "asks for rotations, which are not supported");
  }
  RETURN_IF_ERROR(keys.status());
  const std::vector<std::string> groups = config.objects_in(keys.path("config_groups"));
  if (groups.size() > kSchemeCountMax) {
    return data_loss(fmt::format("{}: the key '{}' has {} groups, at most {} are allowed",
                                 config.name(), keys.path("config_groups"), groups.size(),
                                 kSchemeCountMax));
  }
  for (const std::string& group : groups) {
    const std::string weights = fmt::format("config_groups.{}.weights", group);
    if (!keys.has(weights)) continue;  // activations only
    Keys inner(config, keys.path(weights));
    read_compressed_group(inner, out);
    RETURN_IF_ERROR(inner.status());
  }
  if (!out.schemes.empty() || format == "dense") return {};
  return data_loss(fmt::format("{}: the key '{}' names no quantized weights", config.name(),
                               keys.path("config_groups")));
}

}  // namespace

Result<Quantization> read_quantization(const Config& config, const std::string& prefix) {
  Keys keys(config, prefix);
  Quantization out;
  keys.read("quant_method", out.method_name, std::string(prefix.empty() ? "gptq" : ""));
  RETURN_IF_ERROR(keys.status());
  const std::string& method = out.method_name;
  if (method == "gptq") {
    out.method = QuantMethod::kGptq;
    read_gptq(keys, out);
  } else if (method == "awq") {
    out.method = QuantMethod::kAwq;
    read_awq(keys, out);
  } else if (method == "fp8") {
    out.method = QuantMethod::kFp8;
    read_fp8(keys, out);
  } else if (method == "compressed-tensors") {
    out.method = QuantMethod::kCompressedTensors;
    RETURN_IF_ERROR(read_compressed(config, prefix, out));
  } else {
    return unimplemented(fmt::format(
        "{}: the weights are quantized with {}, which is not supported; supported are gptq, awq, "
        "fp8 and compressed-tensors",
        config.name(), method.empty() ? "an unnamed method" : show_name(method)));
  }
  RETURN_IF_ERROR(keys.status());
  return out;
}

}  // namespace kun
