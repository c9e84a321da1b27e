// kun: the command line. Every sub-command lives in the file of its name.
// Exit codes: 0 done, 1 failed, 2 unusable arguments.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "cli.h"
#include "config_arguments.h"

namespace {

// Says what went wrong in one line and gives the exit code.
int failed(const kun::Status& status) {
  fmt::print(stderr, "kun: {}: {}\n", kun::code_name(status.code()), status.message());
  return status.code() == kun::StatusCode::kInvalidArgument ? 2 : 1;
}

// What is wrong with the command line. A word that nobody knows explains why others are missing.
std::string objection(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(true);
  if (unknown.empty()) return error.what();
  return fmt::format("'{}' is no command or flag here", unknown.front());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Kun serves DeepSeek-family language models on CPUs", "kun"};
  app.set_version_flag("--version", KUN_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  kun::set_log_level(kun::LogLevel::kWarning);
  kun::Action action;
  kun::add_serve_command(app, action);
  kun::add_chat_command(app, action);
  kun::add_complete_command(app, action);
  kun::add_logits_command(app, action);
  kun::add_tokenize_command(app, action);
  kun::add_perplexity_command(app, action);
  kun::add_inspect_command(app, action);
  kun::add_pull_command(app, action);
  kun::add_bench_command(app, action);
  kun::add_run_batch_command(app, action);
  auto arguments = kun::expand_config_arguments({argv + 1, argv + argc});
  if (!arguments) return failed(arguments.error());
  std::ranges::reverse(*arguments);  // CLI11 takes a vector from its back
  try {
    app.parse(*arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return failed(kun::invalid_argument(fmt::format("{}; see --help", objection(app, error))));
  }
  const kun::Status status = action();
  return status.ok() ? 0 : failed(status);
}
