// tokenizer.json: parse, build the tokenizer, and take a text there and back. What a checkpoint
// brings must neither crash nor hang, whatever pattern, normalizer or merge it names.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/tokenizer_file.h"
#include "text/tokenizer.h"

namespace {

constexpr std::string_view kText =
    "Hello, w\xC3\xB6rld!  1234 \xE4\xBD\xA0\xE5\xA5\xBD\r\n\xFF <s>a ab";

volatile std::size_t sink = 0;  // keeps reads from being optimized away

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  auto spec = kun::parse_tokenizer(json);
  if (!spec.has_value()) return 0;
  const auto tokenizer = kun::make_tokenizer(*std::move(spec));
  if (!tokenizer.has_value()) return 0;
  const std::vector<kun::Token> ids = (*tokenizer)->encode(kText, true);
  sink = sink + (*tokenizer)->decode(ids, true).size() + (*tokenizer)->decode(ids, false).size();
  return 0;
}
