// kun logits: the debugging door. Next-token logits at every position, as JSON.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>

#include "cli.h"
#include "executor/worker.h"
#include "runtime/engine_setup.h"

namespace kun {
namespace {

struct Arguments {
  ModelArguments model;
  std::vector<Token> ids;
  std::string prompt;
  int chunk = 512;
};

// JSON has no spelling for what is not finite; null says it.
void append_number(std::string& json, float value) {
  if (!(value - value == 0.0F)) {
    json += "null";
    return;
  }
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  json.append(digits.data(), end);
}

Result<std::vector<Token>> tokens_of(const Arguments& arguments, const ModelBundle& bundle) {
  if (!arguments.ids.empty()) {
    for (const Token id : arguments.ids) {
      if (id < 0 || id >= bundle.model->vocabulary_size()) {
        return invalid_argument(fmt::format("token id {} is outside the vocabulary of {}", id,
                                            bundle.model->vocabulary_size()));
      }
    }
    return arguments.ids;
  }
  if (bundle.tokenizer == nullptr) {
    return invalid_argument("this model comes without a tokenizer: give --ids");
  }
  return bundle.tokenizer->encode(arguments.prompt, true);
}

Status run(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const OpenModel open, open_model(arguments.model));
  ASSIGN_OR_RETURN(const std::vector<Token> tokens, tokens_of(arguments, *open.bundle));
  if (tokens.empty()) return invalid_argument("there are no tokens to evaluate");
  ASSIGN_OR_RETURN(const auto worker,
                   make_text_worker(*open.bundle, open.device->ops(), std::ssize(tokens)));
  fmt::print("{{\"tokens\":[{}],\"logits\":[", fmt::join(tokens, ","));
  std::string json;
  RETURN_IF_ERROR(worker->evaluate_text(
      tokens, arguments.chunk,
      [&json](std::size_t, std::int32_t position, std::span<const float> logits) {
        json = position == 0 ? "[" : ",[";
        for (std::size_t i = 0; i < logits.size(); ++i) {
          if (i > 0) json += ',';
          append_number(json, logits[i]);
        }
        json += ']';
        std::fwrite(json.data(), 1, json.size(), stdout);
      }));
  fmt::print("]}}\n");
  return {};
}

}  // namespace

void add_logits_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("logits", "Next-token logits at every position, as JSON");
  auto arguments = std::make_shared<Arguments>();
  add_model_arguments(*command, arguments->model);
  auto* input = command->add_option_group("input");
  input->add_option("--ids", arguments->ids, "token ids: 1,2,3")->delimiter(',');
  input->add_option("--prompt", arguments->prompt, "text to tokenize");
  input->require_option(1);
  command->add_option("--chunk", arguments->chunk, "tokens evaluated at a time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace kun
