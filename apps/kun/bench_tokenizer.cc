#include "bench_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli.h"

namespace kun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRequestBytes = 16U << 10U;
constexpr int kRounds = 5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The best of a few rounds over `text` in portions of `portion` bytes.
void measure(const Tokenizer& tokenizer, std::string_view text, std::size_t portion,
             const std::string& name) {
  double best = 1e9;
  std::size_t tokens = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    tokens = 0;
    for (std::size_t at = 0; at < text.size(); at += portion) {
      tokens += tokenizer.encode(text.substr(at, portion), false).size();
    }
    best = std::min(best, seconds_since(start));
  }
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  fmt::print("{:48} {:7.2f} MB {:9} tokens {:8.1f} MB/s\n", name, megabytes, tokens,
             megabytes / best);
}

}  // namespace

Status run_tokenizer_bench(const TokenizerBenchArguments& arguments) {
  const Clock::time_point start = Clock::now();
  ASSIGN_OR_RETURN(const auto bundle, load_text_bundle(arguments.model, {}));
  if (bundle->tokenizer == nullptr) {
    return not_found(fmt::format("{} comes without a tokenizer", arguments.model));
  }
  fmt::print("loaded in {:.3f} s\n", seconds_since(start));
  for (const std::string& path : arguments.files) {
    ASSIGN_OR_RETURN(const std::string text, read_text(path));
    measure(*bundle->tokenizer, text, kRequestBytes, path + ", 16 KiB at a time");
    measure(*bundle->tokenizer, text, std::max<std::size_t>(text.size(), 1), path + ", at once");
  }
  return {};
}

}  // namespace kun
