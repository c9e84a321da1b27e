// kun perplexity: how surprised a model is by a text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli.h"
#include "executor/worker.h"
#include "runtime/engine_setup.h"

namespace kun {
namespace {

struct Arguments {
  ModelArguments model;
  std::string file;
  int context = 512;
  int windows_max = 0;
  bool json = false;
};

// -log softmax(logits)[token]
double surprise(std::span<const float> logits, Token token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum) - logits[static_cast<std::size_t>(token)];
}

Status run(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::string text, read_text(arguments.file));
  ASSIGN_OR_RETURN(const OpenModel open, open_model(arguments.model));
  if (open.bundle->tokenizer == nullptr) {
    return invalid_argument("this model comes without a tokenizer");
  }
  const std::vector<Token> tokens = open.bundle->tokenizer->encode(text, true);
  const auto window = static_cast<std::size_t>(
      std::min(arguments.context, open.bundle->model->context_length_max()));
  std::size_t window_count = tokens.size() / window;
  if (arguments.windows_max > 0) {
    window_count = std::min(window_count, static_cast<std::size_t>(arguments.windows_max));
  }
  if (window_count == 0) {
    return invalid_argument(
        fmt::format("the text has {} tokens, fewer than one window of {}", tokens.size(), window));
  }
  ASSIGN_OR_RETURN(const auto worker, make_text_worker(*open.bundle, open.device->ops(),
                                                       static_cast<std::int64_t>(window)));
  // Every window stands alone; the first half of each is context only, as llama.cpp counts.
  double sum = 0.0;
  std::size_t counted = 0;
  for (std::size_t w = 0; w < window_count; ++w) {
    const std::span<const Token> part(tokens.data() + w * window, window);
    RETURN_IF_ERROR(worker->evaluate_text(
        part, 512, [&](std::size_t, std::int32_t position, std::span<const float> logits) {
          const auto next = static_cast<std::size_t>(position) + 1;
          if (next <= window / 2 || next >= window) return;
          sum += surprise(logits, part[next]);
          ++counted;
        }));
    if (!arguments.json) {
      fmt::print(stderr, "\rwindow {} of {}: perplexity {:.4f}", w + 1, window_count,
                 std::exp(sum / static_cast<double>(counted)));
    }
  }
  const double perplexity = std::exp(sum / static_cast<double>(counted));
  if (arguments.json) {
    fmt::print("{{\"perplexity\":{:.6f},\"tokens\":{},\"context\":{}}}\n", perplexity, counted,
               window);
  } else {
    fmt::print(stderr, "\n");
    fmt::print("perplexity {:.4f} over {} tokens, context {}\n", perplexity, counted, window);
  }
  return {};
}

}  // namespace

void add_perplexity_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("perplexity", "Perplexity of a text file");
  auto arguments = std::make_shared<Arguments>();
  add_model_arguments(*command, arguments->model);
  command->add_option("--file", arguments->file, "text file (-: stdin)")->required();
  command
      ->add_option("--context", arguments->context,
                   "tokens in a window; its first half is "
                   "context only")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
  command->add_option("--windows", arguments->windows_max, "windows to evaluate at most (0: all)")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace kun
