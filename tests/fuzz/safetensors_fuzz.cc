// Safetensors: the header of a file; and the same bytes as an index of shards.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "checkpoint/safetensors_file.h"
#include "checkpoint/safetensors_index.h"

namespace {

volatile std::size_t sink = 0;  // keeps reads from being optimized away

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  sink = sink + kun::parse_safetensors_index(text, "fuzz.json").has_value();
  const auto file = kun::SafetensorsFile::parse(bytes, "fuzz.safetensors");
  if (!file.has_value()) return 0;
  for (const kun::SafetensorsTensor& tensor : file->tensors()) {
    if (tensor.data.empty()) continue;
    sink = sink + static_cast<std::size_t>(tensor.data.front()) +
           static_cast<std::size_t>(tensor.data.back()) + (file->find(tensor.name) == &tensor);
  }
  return 0;
}
