// kun run-batch: the requests of an OpenAI batch file, answered without a server.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cli.h"
#include "run_batch_work.h"
#include "serve_model.h"

namespace kun {
namespace {

struct Arguments {
  OpenModelToServe open_model;
  std::string input;
  std::string output;
  bool quiet = false;
};

// Shows how far the batch has got: rewrites a line on a terminal, else writes one now and then.
class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;

  ProgressLine(const Generator& generator, bool quiet) : generator_(generator), quiet_(quiet) {}

  void show(const BatchCounts& counts, bool at_end) {
    const Clock::time_point now = Clock::now();
    const auto interval = std::chrono::seconds(is_terminal_ ? 0 : 10);
    if (quiet_ || (!at_end && now - shown_ < interval)) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const auto tokens = static_cast<double>(generator_.stats().generated_token_count);
    fmt::print(stderr, "{}run-batch: {} read, {} answered, {} failed, {:.1f} output tokens/s{}",
               is_terminal_ ? "\r" : "", counts.read, counts.answered, counts.failed,
               tokens / std::max(seconds, 1e-3), is_terminal_ && !at_end ? "" : "\n");
  }

 private:
  const Generator& generator_;
  const bool quiet_;
  const bool is_terminal_ = ::isatty(STDERR_FILENO) != 0;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Result<File> open_output(const Arguments& arguments) {
  if (arguments.output == "-") {
    return File(stdout, [](std::FILE* file) {
      static_cast<void>(file);
      return 0;
    });
  }
  std::error_code ignored;
  if (std::filesystem::equivalent(arguments.input, arguments.output, ignored)) {
    return invalid_argument(
        fmt::format("{} is the input too; name another output file", arguments.output));
  }
  std::FILE* file = std::fopen(arguments.output.c_str(), "wb");
  if (file == nullptr) {
    return invalid_argument(
        fmt::format("cannot write {}: {}", arguments.output, std::strerror(errno)));
  }
  return File(file, std::fclose);
}

// Each entry is in the file before the next one is computed on.
Status write_line(std::FILE* file, const std::string& path, std::string_view line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file) == line.size() &&
                       std::fputc('\n', file) != EOF && std::fflush(file) == 0;
  if (written) return {};
  return data_loss(fmt::format("cannot write to {}: {}", path, std::strerror(errno)));
}

Status run(const Arguments& arguments) {
  // Unusable files are known before the model is loaded.
  const BatchLimits limits;
  ASSIGN_OR_RETURN(const auto reader, BatchReader::open(arguments.input, limits));
  ASSIGN_OR_RETURN(const File file, open_output(arguments));
  ASSIGN_OR_RETURN(const auto model, arguments.open_model());
  BatchWork work;
  work.model = model->served;
  work.options = model->options;
  // Twice what runs together, so that the engine never waits for the next lines.
  work.window_max = 2 * model->sequences_running_max;
  work.options.limits.text_queue_max = work.window_max;
  work.write = [&](std::string_view line) {
    return write_line(file.get(), arguments.output, line);
  };
  ProgressLine progress(*model->setup.engine, arguments.quiet);
  work.progress = [&progress](const BatchCounts& counts) { progress.show(counts, false); };
  ASSIGN_OR_RETURN(const BatchCounts counts, run_batch(*reader, std::move(work)));
  progress.show(counts, true);
  return {};
}

}  // namespace

void add_run_batch_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("run-batch", "Answer the requests of an OpenAI batch file");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("-i,--input-file", arguments->input, "JSON lines: one request each (-: stdin)")
      ->required();
  command->add_option("-o,--output-file", arguments->output, "where answers go (-: stdout)")
      ->required();
  command->add_flag("--quiet", arguments->quiet, "show no progress");
  arguments->open_model = add_serve_model_flags(*command);
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace kun
