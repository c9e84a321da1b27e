#include "runtime/model_bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "models/registry.h"
#include "models/script_model.h"
#include "runtime/chat_template_file.h"
#include "runtime/tokenizer_file.h"
#include "runtime/tokenizer_gguf.h"
#include "text/byte_tokenizer.h"
#include "text/deepseek_encoder.h"

namespace kun {
namespace {

constexpr std::string_view kScriptPrefix = "script:";

// What script models speak through: roles and contents, one a line.
constexpr std::string_view kScriptTemplate =
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";

// "models/SmolLM2-135M-Instruct.Q4_1.gguf" is served as "SmolLM2-135M-Instruct.Q4_1".
std::string name_of(const std::filesystem::path& path) {
  const auto leaf = path.has_filename() ? path.filename() : path.parent_path().filename();
  return leaf.extension() == ".gguf" ? leaf.stem().string() : leaf.string();
}

Result<std::unique_ptr<const Tokenizer>> load_tokenizer(const Checkpoint& checkpoint,
                                                        const BundleOptions& options) {
  std::error_code ignored;
  const bool from_gguf = options.tokenizer_path.empty() && checkpoint.gguf() != nullptr;
  if (from_gguf) {
    const auto model = checkpoint.gguf()->find_string("tokenizer.ggml.model");
    if (!model || *model == "no_vocab") return std::unique_ptr<const Tokenizer>();
    ASSIGN_OR_RETURN(TokenizerSpec spec, read_tokenizer_gguf(*checkpoint.gguf()));
    return make_tokenizer(std::move(spec));
  }
  std::filesystem::path folder = options.tokenizer_path.empty()
                                     ? checkpoint.path()
                                     : std::filesystem::path(options.tokenizer_path);
  if (std::filesystem::is_regular_file(folder, ignored)) folder = folder.parent_path();
  if (!std::filesystem::exists(folder / "tokenizer.json", ignored)) {
    if (options.tokenizer_path.empty()) return std::unique_ptr<const Tokenizer>();
    return not_found(fmt::format("there is no tokenizer.json in {}", folder.string()));
  }
  ASSIGN_OR_RETURN(TokenizerSpec spec, read_tokenizer_file(folder / "tokenizer.json",
                                                           folder / "tokenizer_config.json"));
  return make_tokenizer(std::move(spec));
}

// Formats that are programs and not templates: by the name that --chat-template gives, else by the
// model. Null for others.
std::unique_ptr<const ChatTemplate> find_encoder(std::string_view name) {
  if (name == "deepseek_v32" || name == "DeepseekV32ForCausalLM") {
    return make_deepseek_v32_encoder();
  }
  if (name == "deepseek_v4" || name == "DeepseekV4ForCausalLM") return make_deepseek_v4_encoder();
  return nullptr;
}

Result<std::unique_ptr<const ChatTemplate>> load_chat_template(const Checkpoint& checkpoint,
                                                               const Tokenizer* tokenizer,
                                                               const BundleOptions& options) {
  std::optional<std::string> source;
  if (auto encoder = find_encoder(options.chat_template_path)) return encoder;
  if (!options.chat_template_path.empty()) {
    ASSIGN_OR_RETURN(const auto file, MappedFile::open(options.chat_template_path));
    source.emplace(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  } else if (checkpoint.gguf() != nullptr) {
    source = find_chat_template(*checkpoint.gguf());
  } else {
    ASSIGN_OR_RETURN(source, read_chat_template(checkpoint.path()));
  }
  if (!source) return find_encoder(checkpoint.config().architecture());
  const auto piece = [tokenizer](const std::optional<Token>& token) {
    return token && tokenizer != nullptr ? std::string(tokenizer->piece(*token)) : std::string();
  };
  return ChatTemplate::compile(*std::move(source),
                               tokenizer != nullptr ? piece(tokenizer->bos()) : "",
                               tokenizer != nullptr ? piece(tokenizer->eos()) : "");
}

Status load_text(ModelBundle& bundle, const BundleOptions& options) {
  ASSIGN_OR_RETURN(bundle.tokenizer, load_tokenizer(*bundle.checkpoint, options));
  ASSIGN_OR_RETURN(bundle.chat_template,
                   load_chat_template(*bundle.checkpoint, bundle.tokenizer.get(), options));
  bundle.generation = bundle.checkpoint->generation_defaults();
  bundle.end_tokens = bundle.generation.eos;
  if (bundle.tokenizer != nullptr && bundle.tokenizer->eos()) {
    bundle.end_tokens.push_back(*bundle.tokenizer->eos());
  }
  std::sort(bundle.end_tokens.begin(), bundle.end_tokens.end());
  bundle.end_tokens.erase(std::unique(bundle.end_tokens.begin(), bundle.end_tokens.end()),
                          bundle.end_tokens.end());
  return {};
}

std::int64_t total_bytes(const Checkpoint& checkpoint) {
  std::int64_t bytes = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    bytes += static_cast<std::int64_t>(tensor.bytes);
  }
  return bytes;
}

Status load_script_text(ModelBundle& bundle) {
  bundle.tokenizer = make_byte_tokenizer();
  ASSIGN_OR_RETURN(bundle.chat_template,
                   ChatTemplate::compile(std::string(kScriptTemplate), "", ""));
  bundle.end_tokens = {kByteTokenizerEnd};
  return {};
}

}  // namespace

Result<std::unique_ptr<ModelBundle>> load_text_bundle(const std::string& model,
                                                      const BundleOptions& options) {
  ASSIGN_OR_RETURN(const std::string path, resolve_model(model));
  auto bundle = std::make_unique<ModelBundle>();
  if (path.starts_with(kScriptPrefix)) {
    bundle->name = name_of(path.substr(kScriptPrefix.size()));
    RETURN_IF_ERROR(load_script_text(*bundle));
    return bundle;
  }
  bundle->name = name_of(path);
  ASSIGN_OR_RETURN(bundle->checkpoint, open_checkpoint(path));
  RETURN_IF_ERROR(load_text(*bundle, options));
  return bundle;
}

Result<std::unique_ptr<ModelBundle>> load_bundle(const std::string& model, Device& device,
                                                 const BundleOptions& options) {
  ASSIGN_OR_RETURN(auto bundle, load_text_bundle(model, options));
  if (bundle->checkpoint == nullptr) {
    if (options.next_token_module) {
      return invalid_argument("a script has no next-token module (MTP)");
    }
    ASSIGN_OR_RETURN(bundle->model, load_script_model(model.substr(kScriptPrefix.size())));
    bundle->vocabulary_limit = bundle->model->vocabulary_size();
    return bundle;
  }
  ModelOptions model_options;
  model_options.cache_dtype = device.cache_dtype();
  model_options.next_token_module = options.next_token_module;
  model_options.latent_by_shape = options.latent_by_shape;
  if (options.progress) {
    model_options.progress = [report = options.progress, total = total_bytes(*bundle->checkpoint)](
                                 std::int64_t done) { report(done, total); };
  }
  if (!options.packed_cache_folder.empty()) {
    bundle->packed_cache = std::make_unique<PackedCache>(
        options.packed_cache_folder, bundle->checkpoint->files(), device.ops().packing());
    model_options.cache = bundle->packed_cache.get();
  }
  ASSIGN_OR_RETURN(bundle->model, load_model(*bundle->checkpoint, device.ops(), model_options));
  if (bundle->packed_cache != nullptr) {
    if (bundle->packed_cache->found()) {
      LOG(kInfo, fmt::format("packed weights read from {}", bundle->packed_cache->path().string()));
    }
    bundle->packed_cache->finish();
  }
  bundle->vocabulary_limit = bundle->model->vocabulary_size();
  if (bundle->tokenizer != nullptr) {
    bundle->vocabulary_limit =
        std::min(bundle->vocabulary_limit, bundle->tokenizer->vocabulary_size());
  }
  return bundle;
}

}  // namespace kun
