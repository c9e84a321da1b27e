// kun complete: one completion of a text.
#include <fmt/format.h>

#include <cstdio>

#include "cli.h"
#include "json_text.h"
#include "text_generation.h"

namespace kun {
namespace {

struct Arguments {
  ModelArguments model;
  GenerationArguments generation;
  std::string prompt;
  bool json = false;
};

Status run(const Arguments& arguments) {
  std::string prompt = arguments.prompt;
  if (prompt == "-") {
    ASSIGN_OR_RETURN(prompt, read_text("-"));
  }
  ASSIGN_OR_RETURN(const TextGenerator generator,
                   TextGenerator::open(arguments.model, arguments.generation.speculative_config));
  std::vector<Token> tokens = generator.bundle().tokenizer->encode(prompt, true);
  if (tokens.empty()) return invalid_argument("the prompt is empty");
  const auto print = [&arguments](std::string_view text) {
    if (arguments.json) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  ASSIGN_OR_RETURN(const GeneratedText result,
                   generator.generate(std::move(tokens), arguments.generation, print));
  if (!arguments.json) {
    fmt::print("\n");
    return {};
  }
  fmt::print(
      "{{\"text\":{},\"finish_reason\":\"{}\",\"prompt_tokens\":{},\"completion_tokens\":{},"
      "\"time_to_first_token_ms\":{:.3f},\"total_ms\":{:.3f}}}\n",
      json_quoted(result.text), result.finish_reason, result.usage.prompt_count,
      result.usage.output_count, 1e3 * result.first_token_seconds, 1e3 * result.total_seconds);
  return {};
}

}  // namespace

void add_complete_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("complete", "One completion of a text");
  auto arguments = std::make_shared<Arguments>();
  add_model_arguments(*command, arguments->model);
  command->add_option("--prompt", arguments->prompt, "text to continue (-: stdin)")->required();
  add_generation_arguments(*command, arguments->generation);
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace kun
