// GGUF: parse, look at everything the file offers, translate it into a configuration.
#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/generation_defaults.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/gguf_types.h"
#include "tensor/weight_view.h"

namespace {

volatile std::size_t sink = 0;  // keeps reads from being optimized away

void touch_metadata(const kun::GgufFile& file) {
  for (const kun::GgufValue& value : file.metadata()) {
    for (const std::string_view text : value.strings()) {
      if (!text.empty()) sink = sink + static_cast<std::size_t>(text.back());
    }
    if (file.find_array(value.key) == nullptr || value.count == 0) continue;
    sink = sink + static_cast<std::size_t>(value.int_at(value.count - 1).value_or(0) != 0);
    sink = sink + static_cast<std::size_t>(value.float_at(0).value_or(0) > 0);
  }
}

// The last row of each tensor, which is where a wrong size shows.
void touch_tensor(const kun::GgufTensor& tensor) {
  const kun::GgufTensorType* type = kun::find_gguf_tensor_type(tensor.type);
  if (!tensor.data.empty()) sink = sink + static_cast<std::size_t>(tensor.data.back());
  if (type == nullptr || !type->format || tensor.dims[0] > 65536) return;
  kun::WeightView view;
  view.format = *type->format;
  view.cols = tensor.dims[0];
  view.rows = tensor.dims[1] * tensor.dims[2] * tensor.dims[3];
  view.data = tensor.data;
  std::vector<float> row(static_cast<std::size_t>(view.cols));
  dequantize_row(view, view.rows - 1, row.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = kun::GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file.has_value()) return 0;
  touch_metadata(*file);
  kun::GgufTensorMap tensors;
  for (const kun::GgufTensor& tensor : file->tensors()) {
    touch_tensor(tensor);
    tensors.emplace(kun::hugging_face_name(tensor.name), &tensor);
  }
  const auto config = kun::config_of_gguf(*file, tensors);
  const auto generation = kun::generation_config_of_gguf(*file);
  if (config.has_value() && generation.has_value()) {
    sink = sink + kun::read_generation_defaults(*config, &*generation).has_value();
  }
  return 0;
}
