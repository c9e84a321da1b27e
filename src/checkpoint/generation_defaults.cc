// Fields under Hugging Face names; a GGUF file arrives here translated (gguf_config.h).
#include "checkpoint/generation_defaults.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <variant>

namespace kun {
namespace {

template <class T, class... Range>
void read_if_there(ConfigReader& reader, std::string_view key, std::optional<T>& value,
                   Range... range) {
  if (!reader.has(key)) return;
  T read{};
  reader.read(key, read, range...);
  if (reader.status().ok()) value = read;
}

// Token ids: a number or a list of them. Files use -1 for "none".
void read_tokens(ConfigReader& reader, const Config& config, std::string_view key,
                 std::vector<Token>& tokens) {
  const ConfigValue* value = config.find(key);
  if (value == nullptr) return;
  std::vector<int> ids;
  if (std::holds_alternative<std::vector<std::int64_t>>(*value)) {
    reader.read(key, ids, -1, std::numeric_limits<Token>::max());
  } else {
    ids.push_back(-1);
    reader.read(key, ids.front(), -1, std::numeric_limits<Token>::max());
  }
  for (const int id : ids) {
    if (id >= 0) tokens.push_back(id);
  }
}

void read_token(ConfigReader& reader, const Config& config, std::string_view key,
                std::optional<Token>& token) {
  std::vector<Token> tokens;
  read_tokens(reader, config, key, tokens);
  if (!tokens.empty()) token = tokens.front();
}

Status read_ids(const Config& config, GenerationDefaults& out) {
  ConfigReader reader(config);
  read_tokens(reader, config, "eos_token_id", out.eos);
  read_token(reader, config, "bos_token_id", out.bos);
  read_token(reader, config, "pad_token_id", out.pad);
  return reader.status();
}

}  // namespace

Result<GenerationDefaults> read_generation_defaults(const Config& config,
                                                    const Config* generation) {
  GenerationDefaults out;
  RETURN_IF_ERROR(read_ids(config, out));
  if (generation != nullptr) {
    RETURN_IF_ERROR(read_ids(*generation, out));
    ConfigReader reader(*generation);
    read_if_there(reader, "temperature", out.temperature, 0.0F, 100.0F);
    read_if_there(reader, "top_p", out.top_p, 0.0F, 1.0F);
    read_if_there(reader, "top_k", out.top_k);
    read_if_there(reader, "min_p", out.min_p, 0.0F, 1.0F);
    read_if_there(reader, "repetition_penalty", out.repetition_penalty, 0.0F, 100.0F);
    read_if_there(reader, "do_sample", out.do_sample);
    read_if_there(reader, "max_new_tokens", out.max_new_tokens, 1);
    read_if_there(reader, "max_length", out.max_length, 1);
    RETURN_IF_ERROR(reader.status());
  }
  std::sort(out.eos.begin(), out.eos.end());
  out.eos.erase(std::unique(out.eos.begin(), out.eos.end()), out.eos.end());
  return out;
}

}  // namespace kun
