// config.json and generation_config.json: parse, and read the fields a model would.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/generation_defaults.h"
#include "checkpoint/quantization.h"

namespace {

volatile std::size_t sink = 0;  // keeps reads from being optimized away

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = kun::Config::parse(text, "fuzz.json");
  if (!config.has_value()) return 0;
  kun::ConfigReader in(*config);
  int whole = 0;
  float real = 0;
  bool flag = false;
  std::string name;
  std::vector<int> wholes;
  std::vector<float> reals;
  in.read("hidden_size", whole, 1, 65536);
  in.read_or("num_key_value_heads", whole, 1);
  in.read_or("rms_norm_eps", real, 1e-6F);
  in.read_or("rope_scaling.factor", real, 1.0F);
  in.read_or("rope_scaling.rope_type", name, "default");
  in.read_or("tie_word_embeddings", flag, false);
  in.read_or("compress_ratios", wholes, {});
  in.read_or("swiglu_limits", reals, {});
  sink = sink + in.status().ok() + config->architecture().size();
  sink = sink + kun::read_quantization(*config, "quantization_config").has_value();
  sink = sink + kun::read_generation_defaults(*config, &*config).has_value();
  return 0;
}
