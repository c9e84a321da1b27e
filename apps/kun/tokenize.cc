// kun tokenize: text to ids and back, chat messages to ids.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli.h"

namespace kun {
namespace {

struct Arguments {
  std::string model;
  std::string prompt;
  std::string messages_path;
  std::vector<Token> decode;
  bool no_special = false;
  bool pieces = false;
  bool render_only = false;
};

Status print_ids(const Tokenizer& tokenizer, const std::string& text, bool add_special,
                 bool pieces) {
  const std::vector<Token> ids = tokenizer.encode(text, add_special);
  if (!pieces) {
    fmt::print("[{}]\n", fmt::join(ids, ","));
    return {};
  }
  for (const Token id : ids) fmt::print("{:>8} {}\n", id, tokenizer.piece(id));
  return {};
}

Status run(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bundle, load_text_bundle(arguments.model, {}));
  if (bundle->tokenizer == nullptr) {
    return not_found(fmt::format("{} comes without a tokenizer", arguments.model));
  }
  const Tokenizer& tokenizer = *bundle->tokenizer;
  if (!arguments.decode.empty()) {
    for (const Token id : arguments.decode) {
      if (id < 0 || id >= tokenizer.vocabulary_size()) {
        return invalid_argument(fmt::format("token id {} is outside the vocabulary of {}", id,
                                            tokenizer.vocabulary_size()));
      }
    }
    fmt::print("{}\n", tokenizer.decode(arguments.decode, arguments.no_special));
    return {};
  }
  if (arguments.messages_path.empty()) {
    ASSIGN_OR_RETURN(const std::string text, arguments.prompt == "-"
                                                 ? read_text("-")
                                                 : Result<std::string>(arguments.prompt));
    return print_ids(tokenizer, text, !arguments.no_special, arguments.pieces);
  }
  if (bundle->chat_template == nullptr) {
    return not_found(fmt::format("{} comes without a chat template", arguments.model));
  }
  ASSIGN_OR_RETURN(const std::string messages, read_text(arguments.messages_path));
  ASSIGN_OR_RETURN(const std::string text,
                   bundle->chat_template->render({.messages = messages, .tools = {}, .extra = {}}));
  if (arguments.render_only) {
    fmt::print("{}", text);
    return {};
  }
  return print_ids(tokenizer, text, false, arguments.pieces);
}

}  // namespace

void add_tokenize_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("tokenize", "Text to token ids and back");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("model", arguments->model,
                   "GGUF file, Hugging Face folder or the name of a pulled model")
      ->required();
  auto* input = command->add_option_group("input");
  input->add_option("--prompt", arguments->prompt, "text to encode (-: stdin)");
  auto* messages = input->add_option("--messages", arguments->messages_path,
                                     "file with a JSON array of chat messages (-: stdin)");
  input->add_option("--decode", arguments->decode, "ids to decode: 1,2,3")->delimiter(',');
  input->require_option(1);
  command->add_flag("--no-special-tokens", arguments->no_special,
                    "add no BOS when encoding, drop special tokens when decoding");
  command->add_flag("--pieces", arguments->pieces, "print one id and its spelling a line");
  command
      ->add_flag("--render-only", arguments->render_only,
                 "with --messages: print the rendered prompt instead of ids")
      ->needs(messages);
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace kun
