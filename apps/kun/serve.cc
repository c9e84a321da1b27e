// kun serve: the server around one model. Flags carry the names of `vllm serve`.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <future>
#include <thread>

#include "base/log.h"
#include "cli.h"
#include "memory_plan.h"
#include "overload_arguments.h"
#include "runtime/engine_setup.h"
#include "serve_model.h"
#include "server/server.h"

namespace kun {
namespace {

struct Arguments {
  ModelArguments model;
  ServerOptions server;
  EngineSettings engine;
  BundleOptions bundle;
  std::vector<std::string> served_names;
  std::string max_model_len = "auto";
  std::string generation_config = "auto";
  std::string metrics_access = "open";
  std::string health_access = "open";
  std::string reasoning_parser = "auto";
  std::string tool_call_parser = "auto";
  double step_time_target_ms = 0.0;
  std::string speculative_config;
  OverloadArguments overload;
  int shutdown_timeout_seconds = 60;
};

// "4096", "32k" (x 1000), "32K" (x 1024), "-1" or "auto": the model's own; as vLLM reads it.
Result<int> parse_length(const std::string& text) {
  if (text == "auto" || text == "-1") return 0;
  std::size_t used = 0;
  double value = 0.0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(std::min(used, text.size()));
  const double scale = unit.empty() ? 1.0 : unit == "k" ? 1e3 : unit == "K" ? 1024.0 : 0.0;
  const double length = value * scale;
  if (used == 0 || !(length >= 1.0) || length > 1 << 30) {
    return invalid_argument(fmt::format(
        "--max-model-len {} is no length: give tokens, as 4096, 32k or 32K, or auto", text));
  }
  return static_cast<int>(length);
}

PageAccess parse_access(const std::string& text) {
  if (text == "off") return PageAccess::kOff;
  return text == "key" ? PageAccess::kKey : PageAccess::kOpen;
}

SamplingDefaults sampling_defaults(const Arguments& arguments, const ModelBundle& bundle) {
  SamplingDefaults defaults;
  if (arguments.generation_config == "vllm") return defaults;
  const GenerationDefaults& given = bundle.generation;
  defaults.temperature = given.temperature.value_or(defaults.temperature);
  if (given.do_sample == false) defaults.temperature = 0.0F;
  defaults.top_p = given.top_p.value_or(defaults.top_p);
  defaults.top_k = std::max(given.top_k.value_or(defaults.top_k), 0);
  defaults.min_p = given.min_p.value_or(defaults.min_p);
  defaults.repetition_penalty = given.repetition_penalty.value_or(defaults.repetition_penalty);
  return defaults;
}

// What the flags name, else what the chat template tells.
AnswerSyntax answer_syntax(const Arguments& arguments, const ModelBundle& bundle) {
  AnswerSyntax syntax;
  if (bundle.chat_template != nullptr)
    syntax = detect_answer_syntax(bundle.chat_template->source());
  syntax.reasoning = parse_reasoning_syntax(arguments.reasoning_parser).value_or(syntax.reasoning);
  syntax.tools = parse_tool_syntax(arguments.tool_call_parser).value_or(syntax.tools);
  return syntax;
}

// The names of a flag's values, and "auto" before them.
std::vector<std::string> with_auto(const std::vector<std::string_view>& names) {
  std::vector<std::string> all = {"auto"};
  all.insert(all.end(), names.begin(), names.end());
  return all;
}

ServedModel served_model(const Arguments& arguments, const ModelBundle& bundle,
                         const EngineSetup& setup) {
  const auto piece = [&bundle](std::optional<Token> token) {
    return token ? std::string(bundle.tokenizer->piece(*token)) : std::string();
  };
  ServedModel model;
  model.names = arguments.served_names.empty() ? std::vector{bundle.name} : arguments.served_names;
  model.root = arguments.model.model;
  model.generator = setup.engine.get();
  model.tokenizer = bundle.tokenizer.get();
  model.chat_template = bundle.chat_template.get();
  model.bos_token = piece(bundle.tokenizer->bos());
  model.eos_token = piece(bundle.tokenizer->eos());
  model.context_length = setup.context_length;
  model.hidden_size = bundle.model->hidden_size();
  model.defaults = sampling_defaults(arguments, bundle);
  model.syntax = answer_syntax(arguments, bundle);
  model.end_tokens = bundle.end_tokens;
  model.created = std::time(nullptr);
  model.cache_config = {
      {"cache_dtype", arguments.model.kv_cache_dtype},
      {"kv_cache_memory_bytes", std::to_string(setup.kv_cache_bytes)},
      {"kv_cache_size_tokens", std::to_string(setup.kv_token_capacity)},
      {"enable_prefix_caching", arguments.engine.prefix_caching ? "True" : "False"}};
  return model;
}

// SIGINT and SIGTERM, blocked in every thread that is started from here on.
sigset_t block_shutdown_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Where SIGINT and SIGTERM arrive. They end the process at once while it loads, for that may take
// longer than whoever asks is ready to wait; once it serves they wake wait().
class ShutdownSignal {
 public:
  ShutdownSignal() {
    std::thread([state = state_, signals = block_shutdown_signals()] {
      int caught = 0;
      sigwait(&signals, &caught);
      if (!state->serving) {
        LOG(kInfo, "asked to end while loading");
        std::_Exit(0);
      }
      state->asked.set_value();
    }).detach();
  }

  void set_serving() { state_->serving = true; }
  void wait() { state_->asked.get_future().wait(); }

 private:
  struct State {
    std::atomic<bool> serving = false;
    std::promise<void> asked;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // the thread may outlive us
};

struct Loaded {
  OpenModel open;
  EngineSetup setup;
};

Result<Loaded> load(const Arguments& arguments, LoadProgress progress) {
  Loaded loaded;
  ASSIGN_OR_RETURN(loaded.open.device, open_device(arguments.model));
  BundleOptions options = arguments.bundle;
  ASSIGN_OR_RETURN(options.packed_cache_folder, packed_cache_folder(arguments.model));
  options.progress = std::move(progress);
  options.next_token_module = needs_next_token_module(arguments.speculative_config);
  options.latent_by_shape = arguments.model.latent_form == "by-shape";
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(loaded.open.bundle,
                   load_bundle(arguments.model.model, *loaded.open.device, options));
  if (loaded.open.bundle->tokenizer == nullptr) {
    return invalid_argument(
        fmt::format("{} comes without a tokenizer; give --tokenizer", arguments.model.model));
  }
  EngineSettings settings = arguments.engine;
  ASSIGN_OR_RETURN(settings.context_length_max, parse_length(arguments.max_model_len));
  ASSIGN_OR_RETURN(settings.speculator, load_speculator(arguments.speculative_config,
                                                        *loaded.open.bundle, *loaded.open.device));
  settings.step_time_target_us = static_cast<std::int64_t>(arguments.step_time_target_ms * 1e3);
  MemoryPlan memory;
  const std::int64_t budget = arguments.overload.memory_budget_bytes;
  if (budget > 0) {
    ASSIGN_OR_RETURN(memory,
                     plan_memory(budget, *loaded.open.bundle, *loaded.open.device, settings));
  }
  ASSIGN_OR_RETURN(loaded.setup,
                   make_engine(*loaded.open.bundle, loaded.open.device->ops(), settings));
  if (budget > 0) share_memory(memory, *arguments.server.memory);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  LOG(kInfo, fmt::format("loaded {} in {:.1f} s; context {}, KV cache {:.1f} MiB for {} tokens",
                         loaded.open.bundle->name, seconds.count(), loaded.setup.context_length,
                         static_cast<double>(loaded.setup.kv_cache_bytes) / (1 << 20),
                         loaded.setup.kv_token_capacity));
  return loaded;
}

Status run(Arguments arguments) {
  set_log_level(LogLevel::kInfo);
  ShutdownSignal shutdown;
  for (const char* variable : {"KUN_API_KEY", "VLLM_API_KEY"}) {
    const char* key = std::getenv(variable);
    if (key != nullptr && *key != '\0') arguments.server.api_keys.emplace_back(key);
  }
  // Before the server says that it is loading: a bad option is no reason to load.
  if (const auto config = parse_speculative_config(arguments.speculative_config); !config) {
    return config.error();
  }
  RETURN_IF_ERROR(apply_overload(arguments.overload, arguments.server));
  arguments.server.metrics_access = parse_access(arguments.metrics_access);
  arguments.server.health_access = parse_access(arguments.health_access);
  arguments.server.version = KUN_VERSION;
  ASSIGN_OR_RETURN(const auto server, Server::start(arguments.server));
  const auto progress = [&server = *server](std::int64_t done, std::int64_t total) {
    server.set_loading_progress(
        total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0.0,
        "loading weights");
  };
  ASSIGN_OR_RETURN(const Loaded loaded, load(arguments, progress));
  ServedModel model = served_model(arguments, *loaded.open.bundle, loaded.setup);
  const std::string name = model.names.front();
  shutdown.set_serving();
  server->set_model(std::move(model));
  const std::string& uds = arguments.server.uds;
  LOG(kInfo,
      fmt::format("serving {} on {}", name,
                  uds.empty() ? fmt::format("{}:{}", arguments.server.host, server->port()) : uds));
  shutdown.wait();
  LOG(kInfo, "shutting down: finishing running requests, refusing new ones");
  loaded.setup.engine->drain();
  if (!server->drain(std::chrono::seconds(arguments.shutdown_timeout_seconds))) {
    LOG(kWarning, "some requests did not finish in time and are cut off");
  }
  server->stop();
  return {};
}

// An unset variable of a shell: an empty key, say, would open the server to everybody.
CLI::Validator not_empty() {
  return {[](const std::string& text) { return std::string(text.empty() ? "it is empty" : ""); },
          ""};
}

void add_server_flags(CLI::App& command, Arguments& a) {
  command.add_option("--host", a.server.host, "address to listen on")->capture_default_str();
  command.add_option("--port", a.server.port, "port to listen on (0: any)")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command.add_option("--uds", a.server.uds, "listen on this unix socket instead");
  command
      .add_option("--api-key", a.server.api_keys,
                  "require one of these keys (also KUN_API_KEY, VLLM_API_KEY)")
      ->check(not_empty());
  command.add_option("--ssl-keyfile", a.server.tls.key_file, "TLS private key (PEM)");
  command.add_option("--ssl-certfile", a.server.tls.certificate_file,
                     "TLS certificate chain (PEM)");
  command.add_option("--allowed-origins", a.server.cors.origins, "CORS origins")
      ->capture_default_str();
  command.add_option("--allowed-methods", a.server.cors.methods, "CORS methods")
      ->capture_default_str();
  command.add_option("--allowed-headers", a.server.cors.headers, "CORS headers")
      ->capture_default_str();
  command.add_flag("--allow-credentials", a.server.cors.allow_credentials, "CORS credentials");
  command.add_option("--root-path", a.server.root_path, "path prefix of a proxy in front");
  command.add_option("--metrics-access", a.metrics_access, "who may read /metrics: open, key, off")
      ->check(CLI::IsMember({"open", "key", "off"}))
      ->capture_default_str();
  command
      .add_option("--health-access", a.health_access,
                  "who may read /health, /ping, /version: open, key, off")
      ->check(CLI::IsMember({"open", "key", "off"}))
      ->capture_default_str();
  command.add_flag("--enable-request-id-headers", a.server.enable_request_id_headers,
                   "echo X-Request-Id");
  command.add_flag("--enable-log-requests", a.server.log_requests, "log every request");
  command
      .add_option("--shutdown-timeout", a.shutdown_timeout_seconds,
                  "seconds that running requests have to finish after SIGTERM")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
}

void add_model_flags(CLI::App& command, Arguments& a) {
  command.add_option("--served-model-name", a.served_names, "names that clients may use")
      ->check(not_empty());
  command
      .add_option("--max-model-len", a.max_model_len,
                  "longest context: 4096, 32k, 32K, auto (the model's own)")
      ->capture_default_str();
  command.add_option("--tokenizer", a.bundle.tokenizer_path, "folder of another tokenizer.json");
  command.add_option("--chat-template", a.bundle.chat_template_path,
                     "file with another chat template, or deepseek_v32 or deepseek_v4");
  command
      .add_option("--reasoning-parser", a.reasoning_parser,
                  "marks around the model's thoughts (auto: as its chat template has them)")
      ->check(CLI::IsMember(with_auto(reasoning_syntax_names())))
      ->capture_default_str();
  command
      .add_option("--tool-call-parser", a.tool_call_parser,
                  "marks around the model's tool calls (auto: as its chat template has them)")
      ->check(CLI::IsMember(with_auto(tool_syntax_names())))
      ->capture_default_str();
  command.add_flag("--trust-request-chat-template", a.server.allow_request_chat_template,
                   "accept templates that come in requests (they run on this machine)");
  command
      .add_option("--generation-config", a.generation_config,
                  "sampling defaults: auto (the model's own), vllm (neutral)")
      ->check(CLI::IsMember({"auto", "vllm"}))
      ->capture_default_str();
}

void add_engine_flags(CLI::App& command, Arguments& a) {
  command
      .add_option("--kv-cache-memory-bytes", a.engine.kv_cache_bytes,
                  "size of the KV cache, as 4GiB (0: a share of free memory)")
      ->transform(CLI::AsSizeValue(false));
  command
      .add_option("--gpu-memory-utilization", a.engine.memory_share,
                  "share of free memory for the KV cache; limits of control groups count")
      ->check(CLI::Range(0.01, 0.95))
      ->capture_default_str();
  command.add_option("--max-num-seqs", a.engine.sequences_running_max, "sequences in one step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command
      .add_option("--max-waiting", a.engine.sequences_waiting_max,
                  "requests in the waiting line; one more is answered with 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--max-num-batched-tokens", a.engine.tokens_per_step_max, "tokens in one step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--decode-slowdown-max", a.engine.decode_slowdown_max,
                  "a step in which prompts join running streams takes at most this many times a "
                  "step without (0: no bound)")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--step-time-target-ms", a.step_time_target_ms,
                  "the same as a fixed time (0: --decode-slowdown-max decides)")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", a.engine.prefix_caching,
                   "reuse the cache of prompts that begin alike (default: on)");
  command.add_option(
      "--speculative-config", a.speculative_config,
      "JSON as vLLM's: {\"method\":\"ngram\",\"num_speculative_tokens\":4,"
      "\"prompt_lookup_max\":4}, {\"method\":\"mtp\",...} for DeepSeek-V3's own module, "
      "or {\"method\":\"draft_model\",\"model\":PATH,...}");
  command.add_option("--trace", a.engine.trace_path, "write every step's plan to this file");
}

// They ask for what is the case anyway: no code comes with a model, nothing is captured in graphs,
// prompts are cut, and calls are found wherever the model makes them.
void add_flags_without_effect(CLI::App& command) {
  for (const char* name : {"--trust-remote-code", "--enforce-eager", "--enable-chunked-prefill",
                           "--enable-auto-tool-choice"}) {
    command.add_flag(name)->group("vLLM's, without effect here");
  }
}

}  // namespace

OpenModelToServe add_serve_model_flags(CLI::App& command) {
  auto arguments = std::make_shared<Arguments>();
  // Nobody waits for an answer here, and the caller bounds what it sends.
  arguments->engine.sequences_waiting_max = 1 << 20;
  add_model_arguments(command, arguments->model);
  add_model_flags(command, *arguments);
  add_engine_flags(command, *arguments);
  return [arguments]() -> Result<std::unique_ptr<ModelToServe>> {
    ASSIGN_OR_RETURN(Loaded loaded, load(*arguments, {}));
    auto model = std::make_unique<ModelToServe>();
    model->open = std::move(loaded.open);
    model->setup = std::move(loaded.setup);
    model->served = served_model(*arguments, *model->open.bundle, model->setup);
    model->options = arguments->server;
    model->options.version = KUN_VERSION;
    model->sequences_running_max = arguments->engine.sequences_running_max;
    return model;
  };
}

void add_serve_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("serve", "OpenAI-compatible server");
  auto arguments = std::make_shared<Arguments>();
  add_model_arguments(*command, arguments->model);
  add_server_flags(*command, *arguments);
  add_overload_flags(*command, arguments->overload);
  add_model_flags(*command, *arguments);
  add_engine_flags(*command, *arguments);
  add_flags_without_effect(*command);
  // Replaced by the file's flags before the command line is parsed; here for --help alone.
  command->add_option("--config", "YAML file with flags: host: 0.0.0.0")->type_name("FILE");
  command->footer("Limits:\n" + describe(arguments->server.limits));
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace kun
