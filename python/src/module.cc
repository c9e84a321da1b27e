// The extension module kun._kun: LocalLlm as Python sees it; batch_bindings.cc has what runs on it.
// It is as thin as it can be; what users call is Python code over it, in python/kun. Every call
// that may wait gives up the GIL.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "backends/cpu/cpu_device.h"
#include "base/log.h"
#include "bindings.h"
#include "runtime/cache_dtype.h"
#include "text/utf8.h"

namespace nb = nanobind;

namespace kun {
namespace {

// Tells Python how far loading has got. An exception of the callback, KeyboardInterrupt among them,
// cannot stop the loading; it is kept and raised when that has ended.
class ProgressReport {
 public:
  explicit ProgressReport(nb::object callback) : callback_(std::move(callback)) {}

  LoadProgress function() {
    if (callback_.is_none()) return {};
    return [this](std::int64_t done, std::int64_t total) {
      const std::int64_t percent = total > 0 ? 100 * done / total : 100;
      if (percent == shown_) return;
      shown_ = percent;
      const PyGILState_STATE gil = or_stand_still([] { return PyGILState_Ensure(); });
      try {
        if (!error_) or_stand_still([&] { callback_(done, total); });
      } catch (nb::python_error& error) {
        error_.emplace(std::move(error));
      }
      PyGILState_Release(gil);
    };
  }

  void raise_kept() {
    if (error_) throw std::move(*error_);
  }

 private:
  nb::object callback_;
  std::int64_t shown_ = -1;
  std::optional<nb::python_error> error_;
};

ComputeType compute_type(const std::string& dtype) {
  if (dtype == "float32") return ComputeType::kFloat32;
  if (dtype == "auto" || dtype == "bfloat16") return ComputeType::kBFloat16;
  raise(invalid_argument(fmt::format("dtype {} is none of auto, bfloat16, float32", dtype)));
}

struct LlmArguments {
  std::string model;
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  std::string kernels;
  int threads = 0;
  std::string tokenizer;
  std::string chat_template;
  int max_model_len = 0;
  std::int64_t kv_cache_memory_bytes = 0;
  double memory_share = 0.5;
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  int waiting_max = 1 << 20;
  bool enable_prefix_caching = true;
  std::string speculative_config;
};

std::unique_ptr<Llm> open_llm(const LlmArguments& given, nb::object progress) {
  LocalLlmOptions options;
  options.model = given.model;
  options.kernels = given.kernels;
  options.thread_count = given.threads;
  options.compute = compute_type(given.dtype);
  options.cache = value_of(parse_cache_dtype(given.kv_cache_dtype));
  options.bundle.tokenizer_path = given.tokenizer;
  options.bundle.chat_template_path = given.chat_template;
  options.engine.context_length_max = given.max_model_len;
  options.engine.kv_cache_bytes = given.kv_cache_memory_bytes;
  options.engine.memory_share = given.memory_share;
  options.engine.sequences_running_max = given.max_num_seqs;
  options.engine.tokens_per_step_max = given.max_num_batched_tokens;
  options.engine.sequences_waiting_max = given.waiting_max;
  options.engine.prefix_caching = given.enable_prefix_caching;
  options.speculative_config = given.speculative_config;
  ProgressReport report(std::move(progress));
  options.bundle.progress = report.function();
  const auto open = [&options] {
    const WithoutGil no_gil;
    return LocalLlm::open(options);
  };
  auto llm = std::make_unique<Llm>(value_of(open()));
  report.raise_kept();
  return llm;
}

std::vector<Token> encode(const Llm& llm, std::string_view text, bool add_special_tokens) {
  const std::shared_ptr<LocalLlm> local = llm.get();
  const WithoutGil no_gil;
  return local->tokenizer().encode(text, add_special_tokens);
}

std::string decode(const Llm& llm, const std::vector<Token>& ids, bool skip_special_tokens) {
  return llm.get()->tokenizer().decode(ids, skip_special_tokens);
}

std::string token_text(const Llm& llm, Token id) {
  return to_valid_utf8(llm.get()->tokenizer().bytes(id, false));
}

std::string render_chat(const Llm& llm, std::string_view messages, std::string_view tools,
                        std::string_view extra, bool add_generation_prompt,
                        const std::optional<std::string>& chat_template) {
  const std::shared_ptr<LocalLlm> local = llm.get();
  const auto render = [&]() -> Result<std::string> {
    const WithoutGil no_gil;
    const ChatTemplateInput input{messages, tools, extra, add_generation_prompt};
    const ModelBundle& bundle = local->bundle();
    if (chat_template) {
      const auto piece = [&bundle](std::optional<Token> token) {
        return token ? std::string(bundle.tokenizer->piece(*token)) : std::string();
      };
      ASSIGN_OR_RETURN(const auto compiled,
                       ChatTemplate::compile(*chat_template, piece(bundle.tokenizer->bos()),
                                             piece(bundle.tokenizer->eos())));
      return compiled->render(input);
    }
    if (bundle.chat_template == nullptr) {
      return invalid_argument(fmt::format(
          "{} comes without a chat template; give chat_template= or use generate()", bundle.name));
    }
    return bundle.chat_template->render(input);
  };
  return value_of(render());
}

nb::dict generation_defaults(const Llm& llm) {
  const GenerationDefaults& given = llm.get()->bundle().generation;
  nb::dict values;
  if (given.temperature) values["temperature"] = *given.temperature;
  if (given.do_sample == false) values["temperature"] = 0.0;
  if (given.top_p) values["top_p"] = *given.top_p;
  if (given.top_k) values["top_k"] = std::max(*given.top_k, 0);
  if (given.min_p) values["min_p"] = *given.min_p;
  if (given.repetition_penalty) values["repetition_penalty"] = *given.repetition_penalty;
  if (given.max_new_tokens) values["max_tokens"] = *given.max_new_tokens;
  return values;
}

// `kind`: json (texts: the schema), regex, choice (texts: all of them), grammar or structural_tag.
OutputGrammar compile_grammar(const Llm& llm, std::string_view kind,
                              const std::vector<std::string>& texts, const std::string& whitespace,
                              bool compact, bool no_additional_properties) {
  const std::shared_ptr<LocalLlm> local = llm.get();
  GrammarSource source = value_of(grammar_source(kind, texts));
  source.whitespace = whitespace;
  source.compact = compact;
  source.no_additional_properties = no_additional_properties;
  const auto compile = [&] {
    const WithoutGil no_gil;
    return local->compile(std::move(source));
  };
  return {value_of(compile())};
}

nb::dict stats(const Llm& llm) {
  const EngineStats stats = value_of(llm.get()->stats());
  nb::dict values;
  values["running_count"] = stats.running_count;
  values["waiting_count"] = stats.waiting_count;
  values["cache_usage"] = stats.cache_usage;
  values["prompt_token_count"] = stats.prompt_token_count;
  values["computed_prompt_token_count"] = stats.computed_prompt_token_count;
  values["generated_token_count"] = stats.generated_token_count;
  values["prefix_query_token_count"] = stats.prefix_query_token_count;
  values["prefix_hit_token_count"] = stats.prefix_hit_token_count;
  values["preemption_count"] = stats.preemption_count;
  values["step_count"] = stats.step_count;
  values["draft_token_count"] = stats.draft_token_count;
  values["accepted_token_count"] = stats.accepted_token_count;
  return values;
}

void bind_llm_arguments(nb::module_& module) {
  nb::class_<LlmArguments>(module, "LlmArguments")
      .def(nb::init<>())
      .def_rw("model", &LlmArguments::model)
      .def_rw("dtype", &LlmArguments::dtype)
      .def_rw("kv_cache_dtype", &LlmArguments::kv_cache_dtype)
      .def_rw("kernels", &LlmArguments::kernels)
      .def_rw("threads", &LlmArguments::threads)
      .def_rw("tokenizer", &LlmArguments::tokenizer)
      .def_rw("chat_template", &LlmArguments::chat_template)
      .def_rw("max_model_len", &LlmArguments::max_model_len)
      .def_rw("kv_cache_memory_bytes", &LlmArguments::kv_cache_memory_bytes)
      .def_rw("memory_share", &LlmArguments::memory_share)
      .def_rw("max_num_seqs", &LlmArguments::max_num_seqs)
      .def_rw("max_num_batched_tokens", &LlmArguments::max_num_batched_tokens)
      .def_rw("waiting_max", &LlmArguments::waiting_max)
      .def_rw("enable_prefix_caching", &LlmArguments::enable_prefix_caching)
      .def_rw("speculative_config", &LlmArguments::speculative_config);
}

void bind_llm(nb::module_& module) {
  nb::class_<OutputGrammar>(module, "OutputGrammar");
  nb::class_<Llm>(module, "Llm", nb::is_weak_referenceable())
      .def_prop_ro("name", [](const Llm& llm) { return llm.get()->bundle().name; })
      .def_prop_ro("device", [](const Llm& llm) { return llm.get()->device(); })
      .def_prop_ro("context_length", [](const Llm& llm) { return llm.get()->context_length(); })
      .def_prop_ro("vocabulary_size",
                   [](const Llm& llm) { return llm.get()->tokenizer().vocabulary_size(); })
      .def_prop_ro("kv_cache_bytes", [](const Llm& llm) { return llm.get()->kv_cache_bytes(); })
      .def_prop_ro("kv_token_capacity",
                   [](const Llm& llm) { return llm.get()->kv_token_capacity(); })
      .def_prop_ro("end_tokens", [](const Llm& llm) { return llm.get()->bundle().end_tokens; })
      .def_prop_ro("bos_token_id", [](const Llm& llm) { return llm.get()->tokenizer().bos(); })
      .def_prop_ro("eos_token_id", [](const Llm& llm) { return llm.get()->tokenizer().eos(); })
      .def_prop_ro("closed", &Llm::closed)
      .def_prop_ro("healthy", [](const Llm& llm) { return llm.get()->healthy(); })
      .def("check_usable", [](const Llm& llm) { check(llm.get()->usable()); })
      .def("encode", &encode, nb::arg("text"), nb::arg("add_special_tokens"))
      .def("decode", &decode, nb::arg("ids"), nb::arg("skip_special_tokens"))
      .def("token_text", &token_text, nb::arg("id"))
      .def("render_chat", &render_chat, nb::arg("messages"), nb::arg("tools"), nb::arg("extra"),
           nb::arg("add_generation_prompt"), nb::arg("chat_template").none())
      .def("compile_grammar", &compile_grammar, nb::arg("kind"), nb::arg("texts"),
           nb::arg("whitespace"), nb::arg("compact"), nb::arg("no_additional_properties"))
      .def("generation_defaults", &generation_defaults)
      .def("stats", &stats)
      .def("close", &Llm::close);
  module.def("open_llm", &open_llm, nb::arg("arguments"), nb::arg("progress").none());
}

void choose_log_level(const std::string& level) {
  constexpr std::pair<std::string_view, LogLevel> kLevels[] = {{"debug", LogLevel::kDebug},
                                                               {"info", LogLevel::kInfo},
                                                               {"warning", LogLevel::kWarning},
                                                               {"error", LogLevel::kError}};
  for (const auto& [name, value] : kLevels) {
    if (name == level) return set_log_level(value);
  }
  raise(invalid_argument(fmt::format("{} is no log level: debug, info, warning, error", level)));
}

}  // namespace
}  // namespace kun

NB_MODULE(_kun, module) {
  // An LLM that lives until the interpreter ends is no leak worth a message.
  nb::set_leak_warnings(false);
  module.attr("__version__") = KUN_VERSION;
  kun::set_log_level(kun::LogLevel::kWarning);
  kun::bind_llm_arguments(module);
  kun::bind_llm(module);
  kun::bind_batch(module);
  module.def("set_log_level", &kun::choose_log_level, nb::arg("level"));
  module.def("kernel_names", &kun::cpu_kernel_names);
}
