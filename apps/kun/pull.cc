// kun pull: fetches a model from a hub.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "cli.h"
#include "hub/hub.h"

namespace kun {
namespace {

struct Arguments {
  std::string name;
  HubOptions options;
};

constexpr double kMib = 1024.0 * 1024.0;

volatile sig_atomic_t interrupted = 0;

// Shows where the pull stands; false, to stop it, after Ctrl-C.
bool show_progress(const PullProgress& progress) {
  if (::isatty(STDERR_FILENO) != 0) {
    const double percent = progress.total_bytes > 0
                               ? 100.0 * static_cast<double>(progress.done_bytes) /
                                     static_cast<double>(progress.total_bytes)
                               : 0.0;
    fmt::print(stderr, "\r{:5.1f} %  {:.1f} of {:.1f} MiB  [{}/{}] {}\033[K", percent,
               static_cast<double>(progress.done_bytes) / kMib,
               static_cast<double>(progress.total_bytes) / kMib, progress.file_index + 1,
               progress.file_count, progress.file);
  }
  return interrupted == 0;
}

Status run(const Arguments& arguments) {
  signal(SIGINT, [](int) { interrupted = 1; });
  auto pulled = pull_model(arguments.name, arguments.options, show_progress);
  if (::isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\n");
  if (!pulled) return pulled.error();
  fmt::print("{}\n", pulled->path.string());
  fmt::print(stderr, "{} files, {:.1f} MiB fetched; serve it with: kun serve {}\n",
             pulled->files.size(), static_cast<double>(pulled->fetched_bytes) / kMib,
             arguments.name);
  return {};
}

}  // namespace

void add_pull_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("pull", "Fetch a model from a hub, resuming and verifying");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("name", arguments->name,
                   "org/name at the hub, or kun-tiny-v3, which this program brings along")
      ->required();
  command->add_option("--endpoint", arguments->options.endpoint,
                      "the hub's address (default: HF_ENDPOINT, or the public hub)");
  command->add_option("--token", arguments->options.token, "access token (default: HF_TOKEN)");
  command->add_option("--revision", arguments->options.revision, "branch, tag or commit")
      ->capture_default_str();
  command->add_option("--file", arguments->options.pattern,
                      "files to fetch, as *Q4_K_M.gguf (default: what serving needs)");
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace kun
