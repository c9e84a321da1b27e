// What `quantization_config` of a config.json says about how weights are stored.
//
// The keys only announce; quantized_tensors.h looks at the tensors and holds them to it. Methods
// and settings that we cannot honour are refused here, by name, before anything is read.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/config.h"

namespace kun {

enum class QuantMethod : std::uint8_t { kNone, kGptq, kAwq, kCompressedTensors, kFp8 };

// What shares a scale.
enum class ScaleStrategy : std::uint8_t { kTensor, kChannel, kGroup, kBlock };

// One way in which matrices of the checkpoint are stored; compressed-tensors may mix several.
struct QuantScheme {
  int bits = 8;
  bool is_float = false;
  bool symmetric = true;
  bool needs_group_index = false;  // columns were reordered: GPTQ's desc_act
  ScaleStrategy strategy = ScaleStrategy::kTensor;
  int group_columns = 0;  // kGroup, and kBlock; 0: all columns
  int block_rows = 0;     // kBlock
};

struct Quantization {
  QuantMethod method = QuantMethod::kNone;
  std::string method_name;
  std::vector<QuantScheme> schemes;  // one at least, unless kNone
  int stored_zero_offset = 0;        // GPTQ v1 stores zero - 1
};

// `prefix`: "quantization_config", or "" when the whole file is one (quantize_config.json).
Result<Quantization> read_quantization(const Config& config, const std::string& prefix);

}  // namespace kun
