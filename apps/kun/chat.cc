// kun chat: a conversation in the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "cli.h"
#include "json_text.h"
#include "text_generation.h"

namespace kun {
namespace {

struct Arguments {
  ModelArguments model;
  GenerationArguments generation;
  std::string system;
};

std::string message(std::string_view role, std::string_view content) {
  return fmt::format("{{\"role\":\"{}\",\"content\":{}}}", role, json_quoted(content));
}

// Reads a line at a time, answers each, and remembers. Ends with the input or "/exit".
Status converse(const TextGenerator& generator, const Arguments& arguments) {
  const bool interactive = ::isatty(STDIN_FILENO) != 0;
  const std::string opening =
      arguments.system.empty() ? std::string() : message("system", arguments.system);
  std::string history = opening;
  std::string line;
  while (true) {
    if (interactive) fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line) || line == "/exit") return {};
    if (line.empty()) continue;
    if (line == "/new") {
      history = opening;
      continue;
    }
    history += (history.empty() ? "" : ",") + message("user", line);
    ASSIGN_OR_RETURN(const std::string prompt,
                     generator.bundle().chat_template->render(
                         {.messages = "[" + history + "]", .tools = {}, .extra = {}}));
    std::vector<Token> tokens = generator.bundle().tokenizer->encode(prompt, false);
    ASSIGN_OR_RETURN(
        const GeneratedText answer,
        generator.generate(std::move(tokens), arguments.generation, [](std::string_view text) {
          std::fwrite(text.data(), 1, text.size(), stdout);
          std::fflush(stdout);
        }));
    fmt::print("\n");
    history += "," + message("assistant", answer.text);
  }
}

Status run(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const TextGenerator generator,
                   TextGenerator::open(arguments.model, arguments.generation.speculative_config));
  if (generator.bundle().chat_template == nullptr) {
    return invalid_argument(fmt::format("{} comes without a chat template; `kun complete` works",
                                        arguments.model.model));
  }
  if (::isatty(STDIN_FILENO) != 0) {
    fmt::print(stderr, "{}: type a message; /new forgets, /exit ends\n", generator.bundle().name);
  }
  return converse(generator, arguments);
}

}  // namespace

void add_chat_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("chat", "A conversation in the terminal");
  auto arguments = std::make_shared<Arguments>();
  arguments->generation.tokens_max = 2048;
  add_model_arguments(*command, arguments->model);
  command->add_option("--system", arguments->system, "system message");
  add_generation_arguments(*command, arguments->generation);
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace kun
