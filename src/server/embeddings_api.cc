// Reading both kinds of requests, and writing their answers. The vectors are the model's own last
// hidden states: a model that was trained to be compared compares well, and any other as well as it
// can.
#include "server/embeddings_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <ctime>
#include <limits>
#include <utility>

#include "engine/embedding.h"
#include "server/chat_generation.h"
#include "server/generation_fields.h"
#include "server/json_writer.h"
#include "server/openai_request.h"
#include "server/pooling_job.h"
#include "server/request_deadlines.h"
#include "server/text_inputs.h"

namespace kun {
namespace {

using Inputs = std::vector<std::vector<Token>>;

constexpr std::size_t kNameBytesMax = 1024;
constexpr std::size_t kFloatBytes = 14;  // of a float's JSON text, with its comma

PoolingFields read_pooling_fields(FieldReader& reader, const ServedModel& model,
                                  const ServerLimits& limits, std::optional<ApiError>& not_found) {
  PoolingFields fields;
  fields.model = read_model(reader, model, not_found);
  const auto pooling = reader.word("pooling", {"last", "mean"});
  if (pooling == "mean") fields.pooling = Pooling::kMean;
  // The second is vLLM's newer name.
  const auto normalize = reader.boolean("normalize");
  const auto activation = reader.boolean("use_activation");
  fields.normalize = normalize.value_or(activation.value_or(true));
  if (const auto keep = reader.integer("truncate_prompt_tokens", -1, model.context_length)) {
    if (*keep == 0) reader.fail("truncate_prompt_tokens", "truncate_prompt_tokens must not be 0");
    fields.truncate_prompt_tokens = static_cast<int>(*keep);
  }
  fields.truncate_right = reader.word("truncation_side", {"left", "right"}) == "right";
  constexpr auto kInt = std::numeric_limits<int>();
  fields.priority =
      static_cast<int>(reader.integer("priority", kInt.min(), kInt.max()).value_or(0));
  fields.cache_salt = reader.string("cache_salt", kNameBytesMax).value_or("");
  fields.request_id = read_request_id(reader);
  fields.deadlines = read_deadlines(reader, limits);
  fields.deadlines.per_token = 0;  // no tokens follow one another: any pace is kept
  reader.ignore({"user"});
  reader.refuse({"mm_processor_kwargs"});
  return fields;
}

// Texts and token ids to tokens.
class InputReader {
 public:
  InputReader(FieldReader& reader, const ServedModel& model, const ServerLimits& limits,
              const PoolingFields& fields)
      : reader_(reader), model_(model), limits_(limits), fields_(fields) {}

  Inputs read(std::string_view name, JsonView value) {
    Inputs inputs;
    for (TextInput& input : read_text_inputs(reader_, name, value, limits_.embedding_inputs_max,
                                             model_.tokenizer->vocabulary_size())) {
      if (reader_.failed()) return {};
      if (input.text) {
        input.ids = model_.tokenizer->encode(*input.text, fields_.add_special_tokens);
      }
      fit(name, input.ids);
      inputs.push_back(std::move(input.ids));
    }
    return inputs;
  }

  // As asked for; what is still too long is refused.
  void fit(std::string_view name, std::vector<Token>& tokens) {
    const auto most = static_cast<std::size_t>(model_.context_length);
    if (fields_.truncate_prompt_tokens) {
      const int asked = *fields_.truncate_prompt_tokens;
      const std::size_t keep = asked < 0 ? most : static_cast<std::size_t>(asked);
      if (tokens.size() > keep && fields_.truncate_right) tokens.resize(keep);
      if (tokens.size() > keep) {
        tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(keep));
      }
    }
    if (tokens.empty()) {
      return reader_.fail(name, fmt::format("{} must not be empty", name));
    }
    if (tokens.size() <= most) return;
    reader_.fail(ApiError{400,
                          fmt::format("This model's maximum context length is {} tokens. However, "
                                      "your request has {} input tokens. Please reduce the length "
                                      "of the input, or give truncate_prompt_tokens.",
                                      most, tokens.size()),
                          std::string(name), true});
  }

 private:
  FieldReader& reader_;
  const ServedModel& model_;
  const ServerLimits& limits_;
  const PoolingFields& fields_;
};

std::string base64(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto bytes = std::as_bytes(values);
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t b = 0; b < count; ++b) {
      word |= std::to_integer<std::uint32_t>(bytes[i + b]) << (16U - 8U * b);
    }
    for (std::size_t c = 0; c < 4; ++c) {
      text += c <= count ? kDigits[(word >> (18U - 6U * c)) & 63U] : '=';
    }
  }
  return text;
}

// What an answer says beside its data.
struct AnswerFrame {
  std::string id;
  std::string model;
  std::int64_t prompt_count = 0;

  void open(JsonWriter& json) const {
    json.begin_object().key("id").string(id).key("object").string("list");
    json.key("created").integer(static_cast<std::int64_t>(std::time(nullptr)));
    json.key("model").string(model).key("data").begin_array();
  }

  std::string close(JsonWriter& json, std::int64_t cached_count) const {
    json.end_array().key("usage").begin_object();
    json.key("prompt_tokens").integer(prompt_count).key("total_tokens").integer(prompt_count);
    json.key("completion_tokens").integer(0).key("prompt_tokens_details").begin_object();
    json.key("cached_tokens").integer(cached_count).end_object().end_object().end_object();
    return json.take();
  }
};

AnswerFrame make_frame(std::string_view prefix, const PoolingFields& fields,
                       const Exchange& exchange, const Inputs& inputs) {
  AnswerFrame frame;
  frame.id = std::string(prefix) +
             (fields.request_id.empty() ? exchange.request().request_id : fields.request_id);
  frame.model = fields.model;
  for (const std::vector<Token>& input : inputs) {
    frame.prompt_count += static_cast<std::int64_t>(input.size());
  }
  return frame;
}

PoolingJob::Setup make_setup(const PoolingFields& fields, Inputs inputs,
                             std::shared_ptr<const ServedModel> model) {
  PoolingJob::Setup setup;
  setup.model = std::move(model);
  setup.inputs = std::move(inputs);
  setup.pooling = fields.pooling;
  setup.normalize = fields.normalize;
  setup.priority = fields.priority;
  setup.cache_salt = fields.cache_salt;
  setup.deadlines = fields.deadlines;
  return setup;
}

// Each text, in order: one and the same may stand before several.
std::string write_scores(const AnswerFrame& frame, std::size_t first_count,
                         PoolingJob::Embeddings embeddings, std::int64_t cached_count) {
  const PoolingJob::Embeddings first = embeddings.first(first_count);
  const PoolingJob::Embeddings second = embeddings.subspan(first_count);
  JsonWriter json;
  frame.open(json);
  for (std::size_t i = 0; i < second.size(); ++i) {
    json.begin_object().key("index").integer(static_cast<std::int64_t>(i));
    json.key("object").string("score").key("score");
    json.number(cosine_similarity(first[first_count == 1 ? 0 : i], second[i])).end_object();
  }
  return frame.close(json, cached_count);
}

std::string write_embeddings(const AnswerFrame& frame, bool as_base64,
                             PoolingJob::Embeddings embeddings, std::int64_t cached_count) {
  JsonWriter json;
  frame.open(json);
  for (std::size_t i = 0; i < embeddings.size(); ++i) {
    json.begin_object().key("index").integer(static_cast<std::int64_t>(i));
    json.key("object").string("embedding").key("embedding");
    if (as_base64) {
      json.string(base64(embeddings[i]));
    } else {
      json.begin_array();
      for (const float value : embeddings[i]) json.number(value);
      json.end_array();
    }
    json.end_object();
  }
  return frame.close(json, cached_count);
}

// The tokens of what is to be embedded. Problems are left in `reader`.
Inputs embedding_inputs(FieldReader& reader, const ServerContext& context, const ServedModel& model,
                        const EmbeddingRequest& request) {
  if (reader.failed()) return {};
  InputReader inputs(reader, model, context.options.limits, request.fields);
  if (request.input) return inputs.read("input", *request.input);
  ReasoningStart start = ReasoningStart::kUndecided;
  Result<std::vector<Token>> tokens = chat_tokens(model, *request.chat, start);
  if (!tokens) {
    reader.fail("messages", tokens.error().message());
    return {};
  }
  inputs.fit("messages", *tokens);
  return {*std::move(tokens)};
}

}  // namespace

EmbeddingRequest read_embedding_request(FieldReader& reader, const ServerContext& context,
                                        const ServedModel& model,
                                        std::optional<ApiError>& not_found) {
  EmbeddingRequest request;
  request.fields = read_pooling_fields(reader, model, context.options.limits, not_found);
  request.base64 = reader.word("encoding_format", {"float", "base64"}) == "base64";
  static_cast<void>(reader.word("embed_dtype", {"float32"}));
  static_cast<void>(reader.word("endianness", {"native", "little"}));
  const int most = model.hidden_size > 0 ? model.hidden_size : 1 << 20;
  request.dimensions = static_cast<std::size_t>(reader.integer("dimensions", 1, most).value_or(0));
  request.fields.add_special_tokens = reader.boolean("add_special_tokens").value_or(true);
  request.input = reader.any("input");
  if (request.input) return request;
  if (!reader.any("messages")) reader.fail("input", "either input or messages is needed");
  request.chat = read_chat_prompt(reader, context, model, Dialect::kOpenAi);
  // A chat that is read, not answered: nobody's turn begins unless the request says so.
  request.chat->add_generation_prompt = reader.boolean("add_generation_prompt").value_or(false);
  return request;
}

ScoreRequest read_score_request(FieldReader& reader, const ServerContext& context,
                                const ServedModel& model, std::optional<ApiError>& not_found) {
  ScoreRequest request;
  request.fields = read_pooling_fields(reader, model, context.options.limits, not_found);
  request.first = reader.any("text_1");
  // vLLM's newer names.
  if (const auto queries = reader.any("queries"); !request.first) request.first = queries;
  request.second = reader.any("text_2");
  if (const auto documents = reader.any("documents"); !request.second) request.second = documents;
  if (const auto items = reader.any("items"); !request.second) request.second = items;
  if (!request.first) reader.fail("text_1", "either text_1 or queries is needed");
  if (!request.second) {
    reader.fail("text_2", "one of text_2, documents and items is needed");
  }
  return request;
}

void handle_embeddings(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  const ServedModel& model = *opened->model;
  FieldReader reader(opened->json.root());
  std::optional<ApiError> not_found;
  const EmbeddingRequest request = read_embedding_request(reader, context, model, not_found);
  if (not_found) return respond_error(exchange, *not_found);
  Inputs inputs = embedding_inputs(reader, context, model, request);
  const auto dimensions =
      request.dimensions > 0 ? request.dimensions : static_cast<std::size_t>(model.hidden_size);
  if (inputs.size() * dimensions * kFloatBytes > context.options.limits.answer_bytes_max) {
    reader.fail("input",
                fmt::format("{} vectors of {} numbers make an answer larger than {} bytes; send "
                            "fewer inputs at a time",
                            inputs.size(), dimensions, context.options.limits.answer_bytes_max));
  }
  if (reader.error()) return respond_error(exchange, *reader.error());
  context.note_unknown_fields(reader.unknown());
  const AnswerFrame frame = make_frame("embd-", request.fields, *exchange, inputs);
  PoolingJob::Setup setup = make_setup(request.fields, std::move(inputs), opened->model);
  setup.dimensions = request.dimensions;
  setup.write = [frame, as_base64 = request.base64](PoolingJob::Embeddings embeddings,
                                                    std::int64_t cached_count) {
    return write_embeddings(frame, as_base64, embeddings, cached_count);
  };
  PoolingJob::start(context, exchange, std::move(setup));
}

void handle_score(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  const ServedModel& model = *opened->model;
  const ServerLimits& limits = context.options.limits;
  FieldReader reader(opened->json.root());
  std::optional<ApiError> not_found;
  const ScoreRequest request = read_score_request(reader, context, model, not_found);
  if (not_found) return respond_error(exchange, *not_found);
  Inputs inputs;
  std::size_t first_count = 0;
  if (!reader.failed()) {
    inputs = InputReader(reader, model, limits, request.fields).read("text_1", *request.first);
    first_count = inputs.size();
    Inputs second;
    if (!reader.failed()) {
      second = InputReader(reader, model, limits, request.fields).read("text_2", *request.second);
    }
    if (first_count != 1 && first_count != second.size()) {
      reader.fail("text_2", fmt::format("{} texts cannot be compared with {}: it must be one with "
                                        "any number, or as many with as many",
                                        first_count, second.size()));
    }
    std::ranges::move(second, std::back_inserter(inputs));
  }
  if (reader.error()) return respond_error(exchange, *reader.error());
  context.note_unknown_fields(reader.unknown());
  const AnswerFrame frame = make_frame("score-", request.fields, *exchange, inputs);
  PoolingJob::Setup setup = make_setup(request.fields, std::move(inputs), opened->model);
  setup.shows_vectors = false;
  setup.write = [frame, first_count](PoolingJob::Embeddings embeddings, std::int64_t cached_count) {
    return write_scores(frame, first_count, embeddings, cached_count);
  };
  PoolingJob::start(context, exchange, std::move(setup));
}

}  // namespace kun
