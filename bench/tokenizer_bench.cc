// How fast a tokenizer.json loads and encodes, on one thread: megabytes of text a second, as one
// request after another would see it. Arguments: tokenizer.json, then texts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "base/mapped_file.h"
#include "runtime/tokenizer_file.h"
#include "text/tokenizer.h"

namespace {

constexpr std::size_t kRequestBytes = 16U << 10U;
constexpr int kRounds = 5;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The best of a few rounds over `text` in portions of `portion` bytes.
void measure(const kun::Tokenizer& tokenizer, std::string_view text, std::size_t portion,
             const char* name) {
  double best = 1e9;
  std::size_t tokens = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    tokens = 0;
    for (std::size_t at = 0; at < text.size(); at += portion) {
      tokens += tokenizer.encode(text.substr(at, portion), false).size();
    }
    best = std::min(best, seconds_since(start));
  }
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::printf("%-44s %6.2f MB %9zu tokens %8.1f MB/s %8.2f Mtoken/s\n", name, megabytes, tokens,
              megabytes / best, static_cast<double>(tokens) / best / 1e6);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER_JSON TEXT...\n");
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  auto spec = kun::read_tokenizer_file(arguments[1]);
  if (!spec) {
    std::fprintf(stderr, "%s\n", spec.error().message().c_str());
    return 1;
  }
  const double read_s = seconds_since(start);
  auto tokenizer = kun::make_tokenizer(*std::move(spec));
  if (!tokenizer) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message().c_str());
    return 1;
  }
  std::printf("load: %.3f s, of which reading %.3f s\n", seconds_since(start), read_s);
  std::string all;
  for (int i = 2; i < count; ++i) {
    auto file = kun::MappedFile::open(arguments[i]);
    if (!file) {
      std::fprintf(stderr, "%s\n", file.error().message().c_str());
      return 1;
    }
    const std::string text(reinterpret_cast<const char*>((*file)->bytes().data()),
                           (*file)->bytes().size());
    measure(**tokenizer, text, kRequestBytes, arguments[i]);
    all += text;
  }
  measure(**tokenizer, all, kRequestBytes, "all, 16 KiB at a time");
  measure(**tokenizer, all, all.size(), "all at once");
  return 0;
}
