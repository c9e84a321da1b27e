// kun: the command line. Every sub-command lives in the file of its name.
// Exit codes: 0 done, 1 failed, 2 unusable arguments.
#include <fmt/format.h>

#include <cstdio>

#include "base/log.h"
#include "cli.h"

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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const kun::Status status = action();
  if (status.ok()) return 0;
  fmt::print(stderr, "kun: {}: {}\n", kun::code_name(status.code()), status.message());
  return status.code() == kun::StatusCode::kInvalidArgument ? 2 : 1;
}
