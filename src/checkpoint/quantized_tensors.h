// Matrices that a Hugging Face checkpoint stores in several tensors: "X.weight" may lie in
// X.qweight, X.scales, X.qzeros and X.g_idx, or in X.weight_packed, X.weight_scale, ...
//
// Every shape and every scale is checked before a view is made, against the configuration and
// against each other; a problem is one sentence that names the tensor.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/quantization.h"
#include "checkpoint/safetensors_file.h"
#include "tensor/weight_view.h"

namespace kun {

using SafetensorsMap = std::map<std::string, const SafetensorsTensor*, std::less<>>;

// Whether "X.weight" is there in parts under other names.
bool has_quantized_parts(const SafetensorsMap& tensors, std::string_view name);

// Whether this tensor's numbers mean nothing without scales beside it.
bool is_code_dtype(std::string_view dtype);

// A matrix for which has_quantized_parts() or is_code_dtype() holds. `path` is for messages.
Result<WeightView> quantized_matrix(const SafetensorsMap& tensors, const Quantization& quantization,
                                    const std::filesystem::path& path, std::string_view name);

// The weights of the model that `tensor` holds: those behind its words, and none where it only says
// what another tensor's codes mean.
std::int64_t parameter_count(const SafetensorsMap& tensors, const Quantization& quantization,
                             const SafetensorsTensor& tensor);

}  // namespace kun
