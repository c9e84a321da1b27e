// The extension module kun._kun: LocalLlm and GenerationBatch as Python sees them. It is as thin as
// it can be; what users call is Python code over it, in python/kun. This file throws, because that
// is how nanobind raises a Python exception; nothing of that leaves it. Every call that may wait
// gives up the GIL.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <variant>

#include "backends/cpu/cpu_device.h"
#include "base/log.h"
#include "generation_batch.h"
#include "local_llm.h"
#include "text/utf8.h"

namespace nb = nanobind;

namespace kun {
namespace {

// As an exception of kun.errors.
[[noreturn]] void raise(const Status& status) {
  const nb::object error = nb::module_::import_("kun.errors")
                               .attr("from_status")(code_name(status.code()), status.message());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void check(const Status& status) {
  if (!status.ok()) raise(status);
}

template <class T>
T value_of(Result<T> result) {
  if (!result) raise(result.error());
  return *std::move(result);
}

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
      const nb::gil_scoped_acquire gil;
      if (error_) return;
      try {
        callback_(done, total);
      } catch (nb::python_error& error) {
        error_.emplace(std::move(error));
      }
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

// An open model, until it is closed.
class Llm {
 public:
  explicit Llm(std::shared_ptr<LocalLlm> llm) : llm_(std::move(llm)) {}

  ~Llm() { close(); }

  std::shared_ptr<LocalLlm> get() const {
    if (llm_ == nullptr) raise(unavailable("this LLM is closed"));
    return llm_;
  }

  void close() {
    std::shared_ptr<LocalLlm> llm = std::move(llm_);
    const nb::gil_scoped_release no_gil;
    if (llm != nullptr) llm->close();
    llm.reset();
  }

  bool closed() const { return llm_ == nullptr; }

 private:
  std::shared_ptr<LocalLlm> llm_;
};

ComputeType compute_type(const std::string& dtype) {
  if (dtype == "float32") return ComputeType::kFloat32;
  if (dtype == "auto" || dtype == "bfloat16") return ComputeType::kBFloat16;
  raise(invalid_argument(fmt::format("dtype {} is none of auto, bfloat16, float32", dtype)));
}

struct LlmArguments {
  std::string model;
  std::string dtype = "auto";
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
};

std::unique_ptr<Llm> open_llm(const LlmArguments& given, nb::object progress) {
  LocalLlmOptions options;
  options.model = given.model;
  options.kernels = given.kernels;
  options.thread_count = given.threads;
  options.compute = compute_type(given.dtype);
  options.bundle.tokenizer_path = given.tokenizer;
  options.bundle.chat_template_path = given.chat_template;
  options.engine.context_length_max = given.max_model_len;
  options.engine.kv_cache_bytes = given.kv_cache_memory_bytes;
  options.engine.memory_share = given.memory_share;
  options.engine.sequences_running_max = given.max_num_seqs;
  options.engine.tokens_per_step_max = given.max_num_batched_tokens;
  options.engine.sequences_waiting_max = given.waiting_max;
  options.engine.prefix_caching = given.enable_prefix_caching;
  ProgressReport report(std::move(progress));
  options.bundle.progress = report.function();
  const auto open = [&options] {
    const nb::gil_scoped_release no_gil;
    return LocalLlm::open(options);
  };
  auto llm = std::make_unique<Llm>(value_of(open()));
  report.raise_kept();
  return llm;
}

std::vector<Token> encode(const Llm& llm, std::string_view text, bool add_special_tokens) {
  const std::shared_ptr<LocalLlm> local = llm.get();
  const nb::gil_scoped_release no_gil;
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
    const nb::gil_scoped_release no_gil;
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
  return values;
}

// Both halves of a request, as Python fills them in.
struct Request {
  GenerateRequest generate;
  OutputOptions output;
};

// A GenerationBatch with what turns its updates into Python values.
class Batch {
 public:
  explicit Batch(const Llm& llm)
      : llm_(llm.get()), batch_(std::make_unique<GenerationBatch>(llm_)) {}

  ~Batch() {
    const nb::gil_scoped_release no_gil;
    batch_.reset();
    llm_.reset();
  }

  std::uint64_t add(Request request, bool model_end_tokens) {
    if (model_end_tokens) {
      const std::vector<Token>& own = llm_->bundle().end_tokens;
      std::vector<Token>& ends = request.generate.end_tokens;
      ends.insert(ends.end(), own.begin(), own.end());
    }
    request.generate.ignore_end_tokens = request.generate.end_tokens.empty();
    request.generate.sampling.end_tokens = request.generate.end_tokens;
    return value_of(batch_->add(std::move(request.generate), std::move(request.output)));
  }

  std::vector<ChoiceUpdate> wait(double seconds) {
    const auto timeout = std::chrono::milliseconds(
        static_cast<std::int64_t>(std::clamp(seconds, 0.0, 3600.0) * 1e3));
    const nb::gil_scoped_release no_gil;
    return batch_->wait(timeout);
  }

  void cancel(std::uint64_t request) { batch_->cancel(request); }
  void cancel_all() { batch_->cancel_all(); }
  void wake() { batch_->wake(); }
  std::size_t open_count() const { return batch_->open_count(); }

 private:
  std::shared_ptr<LocalLlm> llm_;
  std::unique_ptr<GenerationBatch> batch_;
};

std::vector<Token> token_ids(const ChoiceUpdate& update) {
  std::vector<Token> ids;
  ids.reserve(update.tokens.size());
  for (const SampledToken& token : update.tokens) ids.push_back(token.token);
  return ids;
}

// For each token the chosen one first, then the likeliest: (id, logprob, rank), the rank 0 where it
// is not among those that were asked for.
nb::list logprobs(const ChoiceUpdate& update) {
  nb::list rows;
  for (const SampledToken& token : update.tokens) {
    nb::list row;
    std::size_t rank = 0;
    for (std::size_t i = 0; i < token.top.size() && rank == 0; ++i) {
      if (token.top[i].token == token.token) rank = i + 1;
    }
    row.append(nb::make_tuple(token.token, token.logprob, rank));
    for (std::size_t i = 0; i < token.top.size(); ++i) {
      row.append(nb::make_tuple(token.top[i].token, token.top[i].logprob, i + 1));
    }
    rows.append(row);
  }
  return rows;
}

std::optional<std::string_view> finish_reason(const ChoiceUpdate& update) {
  if (!update.finish) return std::nullopt;
  switch (*update.finish) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kError: return "error";
  }
  return "error";
}

std::optional<std::variant<Token, std::string>> stop_reason(const ChoiceUpdate& update) {
  if (update.stop_string) return *update.stop_string;
  if (update.stop_token) return *update.stop_token;
  return std::nullopt;
}

nb::object error_of(const ChoiceUpdate& update) {
  if (update.status.ok()) return nb::none();
  return nb::module_::import_("kun.errors")
      .attr("from_status")(code_name(update.status.code()), update.status.message());
}

// A property that is a member of the request's sampling parameters, or of one of its halves.
template <class Owner, class T>
void sampling_field(nb::class_<Request>& bound, const char* name, T Owner::*member) {
  bound.def_prop_rw(
      name, [member](const Request& request) { return request.generate.sampling.*member; },
      [member](Request& request, T value) {
        request.generate.sampling.*member = std::move(value);
      });
}

template <class T>
void generate_field(nb::class_<Request>& bound, const char* name, T GenerateRequest::*member) {
  bound.def_prop_rw(
      name, [member](const Request& request) { return request.generate.*member; },
      [member](Request& request, T value) { request.generate.*member = std::move(value); });
}

template <class T>
void output_field(nb::class_<Request>& bound, const char* name, T OutputOptions::*member) {
  bound.def_prop_rw(
      name, [member](const Request& request) { return request.output.*member; },
      [member](Request& request, T value) { request.output.*member = std::move(value); });
}

void bind_request(nb::module_& module) {
  nb::class_<Request> bound(module, "Request");
  bound.def(nb::init<>());
  generate_field(bound, "prompt", &GenerateRequest::prompt);
  generate_field(bound, "max_tokens", &GenerateRequest::output_count_max);
  generate_field(bound, "n", &GenerateRequest::choice_count);
  generate_field(bound, "end_tokens", &GenerateRequest::end_tokens);
  generate_field(bound, "priority", &GenerateRequest::priority);
  generate_field(bound, "cache_salt", &GenerateRequest::cache_salt);
  sampling_field(bound, "temperature", &SamplingParams::temperature);
  sampling_field(bound, "top_k", &SamplingParams::top_k);
  sampling_field(bound, "top_p", &SamplingParams::top_p);
  sampling_field(bound, "min_p", &SamplingParams::min_p);
  sampling_field(bound, "repetition_penalty", &SamplingParams::repetition_penalty);
  sampling_field(bound, "frequency_penalty", &SamplingParams::frequency_penalty);
  sampling_field(bound, "presence_penalty", &SamplingParams::presence_penalty);
  sampling_field(bound, "seed", &SamplingParams::seed);
  sampling_field(bound, "logprobs", &SamplingParams::logprob_count);
  sampling_field(bound, "logit_bias", &SamplingParams::logit_bias);
  sampling_field(bound, "min_tokens", &SamplingParams::output_count_min);
  output_field(bound, "stop", &OutputOptions::stop);
  output_field(bound, "stop_token_ids", &OutputOptions::stop_token_ids);
  output_field(bound, "include_stop", &OutputOptions::include_stop);
  output_field(bound, "skip_special_tokens", &OutputOptions::skip_special_tokens);
  output_field(bound, "spaces_between_special_tokens",
               &OutputOptions::spaces_between_special_tokens);
  output_field(bound, "detokenize", &OutputOptions::detokenize);
}

void bind_llm_arguments(nb::module_& module) {
  nb::class_<LlmArguments>(module, "LlmArguments")
      .def(nb::init<>())
      .def_rw("model", &LlmArguments::model)
      .def_rw("dtype", &LlmArguments::dtype)
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
      .def_rw("enable_prefix_caching", &LlmArguments::enable_prefix_caching);
}

void bind_llm(nb::module_& module) {
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
      .def("generation_defaults", &generation_defaults)
      .def("stats", &stats)
      .def("close", &Llm::close);
  module.def("open_llm", &open_llm, nb::arg("arguments"), nb::arg("progress").none());
}

void bind_batch(nb::module_& module) {
  nb::class_<ChoiceUpdate>(module, "ChoiceUpdate")
      .def_ro("request", &ChoiceUpdate::request)
      .def_ro("choice", &ChoiceUpdate::choice)
      .def_ro("text", &ChoiceUpdate::text)
      .def_prop_ro("token_ids", &token_ids)
      .def_prop_ro("logprobs", &logprobs)
      .def_prop_ro("finish_reason", &finish_reason)
      .def_prop_ro("stop_reason", &stop_reason)
      .def_prop_ro("cached_count",
                   [](const ChoiceUpdate& update) { return update.usage.cached_count; })
      .def_prop_ro("queue_seconds",
                   [](const ChoiceUpdate& update) {
                     return static_cast<double>(update.usage.queue_microseconds) * 1e-6;
                   })
      .def_prop_ro("error", &error_of);
  nb::class_<Batch>(module, "Batch")
      .def(nb::init<const Llm&>(), nb::arg("llm"))
      .def("add", &Batch::add, nb::arg("request"), nb::arg("model_end_tokens"))
      .def("wait", &Batch::wait, nb::arg("seconds"))
      .def("wake", &Batch::wake)
      .def("cancel", &Batch::cancel, nb::arg("request"))
      .def("cancel_all", &Batch::cancel_all)
      .def_prop_ro("open_count", &Batch::open_count);
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
  kun::bind_request(module);
  kun::bind_batch(module);
  module.def("set_log_level", &kun::choose_log_level, nb::arg("level"));
  module.def("kernel_names", &kun::cpu_kernel_names);
}
