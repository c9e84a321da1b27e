// Requests and batches of the extension module: what LLM.generate() and AsyncLLM run on. Values are
// turned into Python's here, with the GIL; waiting is done without it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <variant>

#include "bindings.h"
#include "generation_batch.h"
#include "text/constrain_after.h"
#include "text/gbnf.h"
#include "text/lark_text.h"
#include "text/structural_tag.h"

namespace kun {
namespace {

// Both halves of a request, as Python fills them in.
struct Request {
  GenerateRequest generate;
  OutputOptions output;
  std::shared_ptr<const Grammar> grammar;
  bool after_thoughts = false;  // `grammar` describes what comes behind </think>
};

void constrain(Request& request, const OutputGrammar& grammar, bool after_thoughts) {
  request.grammar = grammar.grammar;
  request.after_thoughts = after_thoughts;
}

// The choices are the best hypotheses of a search of that width.
void beam_search(Request& request, int width, double length_penalty) {
  request.generate.beams.width = width;
  request.generate.beams.length_penalty = length_penalty;
}

// Nothing is said; the prompt is read for its hidden states.
void pool(Request& request, const std::string& pooling, std::size_t dimensions, bool normalize) {
  request.generate.pooling = pooling == "mean" ? Pooling::kMean : Pooling::kLast;
  request.output.dimensions = dimensions;
  request.output.normalize = normalize;
}

// A GenerationBatch with what turns its updates into Python values.
class Batch {
 public:
  explicit Batch(const Llm& llm)
      : llm_(llm.get()), batch_(std::make_unique<GenerationBatch>(llm_)) {}

  ~Batch() {
    const WithoutGil no_gil;
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
    if (request.grammar != nullptr) {
      std::unique_ptr<TokenConstraint> constraint = request.grammar->begin();
      if (request.after_thoughts) {
        constraint = constrain_after(llm_->thoughts_end(), std::move(constraint));
      }
      request.generate.constraint = std::move(constraint);
    }
    return value_of(batch_->add(std::move(request.generate), std::move(request.output)));
  }

  std::vector<ChoiceUpdate> wait(double seconds) {
    const auto timeout = std::chrono::milliseconds(
        static_cast<std::int64_t>(std::clamp(seconds, 0.0, 3600.0) * 1e3));
    const WithoutGil no_gil;
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
nb::list logprobs(const std::vector<SampledToken>& tokens) {
  nb::list rows;
  for (const SampledToken& token : tokens) {
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
    case FinishReason::kTimeout:
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
  return exception_of(update.status);
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
  sampling_field(bound, "allowed_token_ids", &SamplingParams::allowed_tokens);
  sampling_field(bound, "bad_words", &SamplingParams::bad_words);
  generate_field(bound, "prompt_logprobs", &GenerateRequest::prompt_logprob_count);
  bound.def("beam_search", &beam_search, nb::arg("width"), nb::arg("length_penalty"));
  bound.def("pool", &pool, nb::arg("pooling"), nb::arg("dimensions"), nb::arg("normalize"));
  bound.def("constrain", &constrain, nb::arg("grammar"), nb::arg("after_thoughts"));
  output_field(bound, "stop", &OutputOptions::stop);
  output_field(bound, "stop_token_ids", &OutputOptions::stop_token_ids);
  output_field(bound, "include_stop", &OutputOptions::include_stop);
  output_field(bound, "skip_special_tokens", &OutputOptions::skip_special_tokens);
  output_field(bound, "spaces_between_special_tokens",
               &OutputOptions::spaces_between_special_tokens);
  output_field(bound, "detokenize", &OutputOptions::detokenize);
}

void bind_updates(nb::module_& module) {
  nb::class_<ChoiceUpdate>(module, "ChoiceUpdate")
      .def_ro("request", &ChoiceUpdate::request)
      .def_ro("choice", &ChoiceUpdate::choice)
      .def_ro("text", &ChoiceUpdate::text)
      .def_prop_ro("token_ids", &token_ids)
      .def_prop_ro("logprobs", [](const ChoiceUpdate& update) { return logprobs(update.tokens); })
      .def_ro("pooled", &ChoiceUpdate::embedding)
      .def_prop_ro("prompt_logprobs",
                   [](const ChoiceUpdate& update) { return logprobs(update.prompt_scores); })
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

}  // namespace

Result<GrammarSource> grammar_source(std::string_view kind, const std::vector<std::string>& texts) {
  if (kind == "choice") return grammar_of_choices(texts);
  if (texts.size() != 1) return invalid_argument("a grammar needs one text");
  const std::string& text = texts.front();
  if (kind == "grammar" && is_gbnf(text)) return gbnf_to_lark(text);
  if (kind == "structural_tag") return grammar_of_structural_tag(text);
  GrammarSource source;
  if (kind == "json") {
    source.schemas = texts;
    return source;
  }
  source.kind = kind == "grammar" ? GrammarKind::kLark : GrammarKind::kRegex;
  source.text = text;
  return source;
}

void bind_batch(nb::module_& module) {
  bind_request(module);
  bind_updates(module);
}

}  // namespace kun
