// Quantized matrices: a quantization_config and tensors that may or may not be what it announces.
// The input is JSON text, a zero byte, and a safetensors file. What is accepted must be readable.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/quantized_tensors.h"
#include "tensor/weight_view.h"

namespace {

volatile float sink = 0;  // keeps reads from being optimized away

void read_rows(const kun::WeightView& view) {
  std::vector<float> row(static_cast<std::size_t>(view.cols));
  for (const std::int64_t at : {std::int64_t{0}, view.rows / 2, view.rows - 1}) {
    kun::dequantize_row(view, at, row.data());
    sink = row.back();
    kun::dequantize_row(view.slice_rows(at, 1), 0, row.data());
    sink = row.front();
  }
}

// "a.qweight" -> "a.weight".
std::string matrix_name(const std::string& name) {
  for (const std::string_view part : {".qweight", ".weight_packed"}) {
    if (name.ends_with(part)) return name.substr(0, name.size() - part.size()) + ".weight";
  }
  return name;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = text.find('\0');
  if (end == std::string_view::npos) return 0;
  const auto config = kun::Config::parse(text.substr(0, end), "fuzz.json");
  if (!config.has_value()) return 0;
  const auto quantization = kun::read_quantization(*config, "quantization_config");
  if (!quantization.has_value()) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(end + 1);
  const auto file = kun::SafetensorsFile::parse(bytes, "fuzz.safetensors");
  if (!file.has_value()) return 0;
  kun::SafetensorsMap tensors;
  for (const kun::SafetensorsTensor& tensor : file->tensors()) {
    tensors.emplace(tensor.name, &tensor);
  }
  for (const auto& [stored, tensor] : tensors) {
    const std::string name = matrix_name(stored);
    const bool codes = stored.ends_with(".weight") && kun::is_code_dtype(tensor->dtype);
    if (!codes && !kun::has_quantized_parts(tensors, name)) continue;
    const auto view = kun::quantized_matrix(tensors, *quantization, "fuzz", name);
    if (view.has_value()) read_rows(*view);
  }
  return 0;
}
