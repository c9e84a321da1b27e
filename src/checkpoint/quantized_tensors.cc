// Layouts as AutoGPTQ, AutoAWQ, compressed-tensors and DeepSeek's README_WEIGHTS.md define them;
// see tensor/plane_values.cc for what the codes mean.
#include "checkpoint/quantized_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/show_name.h"
#include "checkpoint/tensor_values.h"
#include "tensor/plane_values.h"

namespace kun {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr std::string_view kWeightSuffix = ".weight";
constexpr std::int64_t kSideMax = std::int64_t{1} << 28;  // of a matrix, as the packers have it

std::string_view stem_of(std::string_view name) {
  return name.ends_with(kWeightSuffix) ? name.substr(0, name.size() - kWeightSuffix.size()) : name;
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::optional<ScaleType> scale_type(std::string_view dtype) {
  if (dtype == "F32") return ScaleType::kF32;
  if (dtype == "F16") return ScaleType::kF16;
  if (dtype == "BF16") return ScaleType::kBF16;
  if (dtype == "F8_E4M3") return ScaleType::kE4M3;
  if (dtype == "F8_E8M0") return ScaleType::kE8M0;
  return std::nullopt;
}

// Builds the view of one matrix; the first problem is returned.
class MatrixReader {
 public:
  MatrixReader(const SafetensorsMap& tensors, const Quantization& quantization,
               const std::filesystem::path& path, std::string_view name)
      : tensors_(tensors), quantization_(quantization), path_(path), stem_(stem_of(name)) {}

  Result<WeightView> gptq_or_awq();
  Result<WeightView> packed();
  Result<WeightView> codes();

 private:
  std::string part(std::string_view suffix) const { return fmt::format("{}.{}", stem_, suffix); }
  const SafetensorsTensor* find(std::string_view suffix) const {
    const auto found = tensors_.find(part(suffix));
    return found == tensors_.end() ? nullptr : found->second;
  }
  Result<const SafetensorsTensor*> get(std::string_view suffix) const {
    const SafetensorsTensor* tensor = find(suffix);
    if (tensor == nullptr) return missing_tensor(path_, part(suffix));
    return tensor;
  }
  Status bad(std::string_view suffix, const std::string& what) const {
    return data_loss(
        fmt::format("{}: tensor {} {}", path_.string(), show_name(part(suffix)), what));
  }
  Status expect_dtype(const SafetensorsTensor& tensor, std::string_view suffix,
                      std::string_view dtype) const;
  Status expect_shape(const SafetensorsTensor& tensor, std::string_view suffix,
                      const Shape& shape) const;
  Status set_size(std::string_view suffix, std::int64_t rows, std::int64_t cols);
  Status read_group_index(std::string_view suffix, bool required);
  Status set_scales(std::string_view suffix, const SafetensorsTensor& tensor, ScaleType type);
  Status set_row_group_scales(std::string_view suffix);
  void simplify_zeros();
  Status match_scales(std::string_view suffix, const Shape& shape, bool is_float);
  bool fits(const QuantScheme& scheme, const Shape& shape);
  Status read_zeros(std::string_view suffix);
  Status packed_integers(const SafetensorsTensor& words);
  Status packed_floats(const SafetensorsTensor& words);
  Status float_codes(const SafetensorsTensor& tensor);

  const SafetensorsMap& tensors_;
  const Quantization& quantization_;
  const std::filesystem::path& path_;
  std::string_view stem_;
  WeightView view_;
};

Status MatrixReader::expect_dtype(const SafetensorsTensor& tensor, std::string_view suffix,
                                  std::string_view dtype) const {
  if (tensor.dtype == dtype) return {};
  return bad(suffix, fmt::format("is stored as {}, it must be {}", tensor.dtype, dtype));
}

Status MatrixReader::expect_shape(const SafetensorsTensor& tensor, std::string_view suffix,
                                  const Shape& shape) const {
  if (tensor.shape == shape) return {};
  return bad(suffix, fmt::format("has the shape [{}], it must be [{}]",
                                 fmt::join(tensor.shape, ", "), fmt::join(shape, ", ")));
}

Status MatrixReader::set_size(std::string_view suffix, std::int64_t rows, std::int64_t cols) {
  if (rows < 1 || cols < 1 || rows > kSideMax || cols > kSideMax) {
    return bad(suffix, fmt::format("stands for a matrix of {} x {}", rows, cols));
  }
  view_.rows = rows;
  view_.cols = cols;
  view_.planes.stored_rows = rows;
  return {};
}

// An index that only counts up group by group is dropped: it says nothing. compressed-tensors
// writes -1 for every column where it was never set (forward.py: "-1 in g_idx" is column order).
Status MatrixReader::read_group_index(std::string_view suffix, bool required) {
  const SafetensorsTensor* tensor = find(suffix);
  if (tensor == nullptr && required) {
    return bad(suffix, "is missing: the configuration says that columns were reordered");
  }
  if (tensor == nullptr) return {};
  RETURN_IF_ERROR(expect_dtype(*tensor, suffix, "I32"));
  RETURN_IF_ERROR(expect_shape(*tensor, suffix, {view_.cols}));
  const bool unset =
      std::ranges::all_of(tensor->data, [](std::byte byte) { return byte == std::byte{0xFF}; });
  if (unset && quantization_.method == QuantMethod::kCompressedTensors) return {};
  bool in_order = true;
  for (std::int64_t col = 0; col < view_.cols; ++col) {
    std::int32_t group = 0;
    std::memcpy(&group, tensor->data.data() + col * 4, sizeof(group));
    if (group < 0 || group >= view_.planes.group_count) {
      return bad(suffix, fmt::format("puts column {} into group {} of {}", col, group,
                                     view_.planes.group_count));
    }
    in_order = in_order && group == col / view_.planes.group_columns;
  }
  if (!in_order) view_.planes.group_index = tensor->data;
  return {};
}

// The strides are set; every element must be a number.
Status MatrixReader::set_scales(std::string_view suffix, const SafetensorsTensor& tensor,
                                ScaleType type) {
  ScalePlane& scales = view_.planes.scales;
  scales.data = tensor.data;
  scales.type = type;
  WeightView one;  // looks at one scale after the other
  one.planes.scales = {tensor.data, type, 1, 0, 1};
  const auto count = static_cast<std::int64_t>(tensor.data.size()) / size_bytes(type);
  for (std::int64_t i = 0; i < count; ++i) {
    const float scale = scale_of(one, 0, i);
    if (!std::isfinite(scale)) return bad(suffix, fmt::format("has the scale {} at {}", scale, i));
  }
  return {};
}

// Scales [group, row], as GPTQ and AWQ have them.
Status MatrixReader::set_row_group_scales(std::string_view suffix) {
  ASSIGN_OR_RETURN(const SafetensorsTensor* tensor, get(suffix));
  const auto type = scale_type(tensor->dtype);
  if (!type || size_bytes(*type) == 1) return expect_dtype(*tensor, suffix, "F16");
  RETURN_IF_ERROR(expect_shape(*tensor, suffix, {view_.planes.group_count, view_.rows}));
  view_.planes.scales.row_stride = 1;
  view_.planes.scales.group_stride = view_.rows;
  return set_scales(suffix, *tensor, *type);
}

// Zeros that are all the same, as symmetric files have them, become the constant they are.
void MatrixReader::simplify_zeros() {
  ZeroPlane& zeros = view_.planes.zeros;
  const std::byte first = zeros.data.front();
  const bool four = code_bits(view_.format) == 4;
  const bool uniform =
      std::ranges::all_of(zeros.data, [first](std::byte byte) { return byte == first; }) &&
      (!four || (first >> 4) == (first & std::byte{15}));
  if (!uniform) return;
  const int mask = four ? 15 : 255;
  zeros = {ZeroLayout::kConstant, {}, (static_cast<int>(first) + zeros.constant) & mask};
}

Result<WeightView> MatrixReader::gptq_or_awq() {
  const bool awq = quantization_.method == QuantMethod::kAwq;
  if (!awq && quantization_.method != QuantMethod::kGptq) {
    return bad("qweight", "is of GPTQ or AWQ, which the configuration does not announce");
  }
  const QuantScheme& scheme = quantization_.schemes.front();
  const std::int64_t per_word = 32 / scheme.bits;
  ASSIGN_OR_RETURN(const SafetensorsTensor* words, get("qweight"));
  RETURN_IF_ERROR(expect_dtype(*words, "qweight", "I32"));
  if (words->shape.size() != 2) return bad("qweight", "must have 2 dimensions");
  const std::int64_t down = words->shape[0];
  const std::int64_t across = words->shape[1];
  if (down > kSideMax || across > kSideMax) return bad("qweight", "is too large");
  RETURN_IF_ERROR(
      set_size("qweight", awq ? across * per_word : across, awq ? down : down * per_word));
  view_.data = words->data;
  view_.format = awq                ? WeightFormat::kAwqInt4
                 : scheme.bits == 4 ? WeightFormat::kGptqInt4
                                    : WeightFormat::kGptqInt8;
  WeightPlanes& planes = view_.planes;
  planes.group_columns = scheme.group_columns == 0 ? view_.cols : scheme.group_columns;
  planes.group_count = divide_up(view_.cols, planes.group_columns);
  RETURN_IF_ERROR(set_row_group_scales("scales"));
  if (view_.rows % per_word != 0) {
    return bad("qweight", fmt::format("has {} rows, no multiple of {}", view_.rows, per_word));
  }
  ASSIGN_OR_RETURN(const SafetensorsTensor* zeros, get("qzeros"));
  RETURN_IF_ERROR(expect_dtype(*zeros, "qzeros", "I32"));
  RETURN_IF_ERROR(expect_shape(*zeros, "qzeros", {planes.group_count, view_.rows / per_word}));
  planes.zeros.data = zeros->data;
  planes.zeros.layout = awq ? ZeroLayout::kAwq : ZeroLayout::kGptq;
  planes.zeros.constant = quantization_.stored_zero_offset;
  simplify_zeros();
  if (!awq) RETURN_IF_ERROR(read_group_index("g_idx", scheme.needs_group_index));
  return view_;
}

// Whether scales of `shape` are what the scheme asks for; sets the strides if so.
bool MatrixReader::fits(const QuantScheme& scheme, const Shape& shape) {
  ScalePlane& scales = view_.planes.scales;
  WeightPlanes& planes = view_.planes;
  planes.group_columns = scheme.group_columns > 0 ? scheme.group_columns : view_.cols;
  planes.group_count = divide_up(view_.cols, planes.group_columns);
  scales = {{}, ScaleType::kF32, 1, 0, 0};
  const std::int64_t groups = planes.group_count;
  switch (scheme.strategy) {
    case ScaleStrategy::kTensor: {
      std::int64_t count = 1;
      for (const std::int64_t dim : shape) count = dim == 1 ? count : 0;
      return count == 1;
    }
    case ScaleStrategy::kChannel:
      scales.row_stride = 1;
      return shape == Shape{view_.rows, 1} || shape == Shape{view_.rows};
    case ScaleStrategy::kGroup:
      scales.row_stride = groups;
      scales.group_stride = 1;
      return shape == Shape{view_.rows, groups};
    case ScaleStrategy::kBlock:
      scales.row_block = scheme.block_rows;
      scales.row_stride = groups;
      scales.group_stride = 1;
      return shape == Shape{divide_up(view_.rows, scheme.block_rows), groups};
  }
  return false;
}

// Finds the scheme that these scales follow.
Status MatrixReader::match_scales(std::string_view suffix, const Shape& shape, bool is_float) {
  const int bits = code_bits(view_.format);
  for (const QuantScheme& scheme : quantization_.schemes) {
    if (scheme.bits == bits && scheme.is_float == is_float && fits(scheme, shape)) return {};
  }
  return bad(suffix, fmt::format("has the shape [{}], which fits no setting of the configuration "
                                 "for a {} x {} matrix",
                                 fmt::join(shape, ", "), view_.rows, view_.cols));
}

Status MatrixReader::read_zeros(std::string_view suffix) {
  const int bits = code_bits(view_.format);
  ZeroPlane& zeros = view_.planes.zeros;
  const SafetensorsTensor* tensor = find(suffix);
  bool asymmetric = false;
  for (const QuantScheme& scheme : quantization_.schemes) {
    asymmetric = asymmetric || (scheme.bits == bits && !scheme.symmetric);
  }
  bool symmetric = false;
  for (const QuantScheme& scheme : quantization_.schemes) {
    symmetric = symmetric || (scheme.bits == bits && scheme.symmetric);
  }
  if (tensor == nullptr && asymmetric && !symmetric) return missing_tensor(path_, part(suffix));
  if (tensor == nullptr || !asymmetric) {
    zeros.constant = 1 << (bits - 1);
    return {};
  }
  RETURN_IF_ERROR(expect_dtype(*tensor, suffix, "I32"));
  RETURN_IF_ERROR(
      expect_shape(*tensor, suffix, {divide_up(view_.rows * bits, 32), view_.planes.group_count}));
  zeros.data = tensor->data;
  zeros.layout = ZeroLayout::kColumns;
  return {};
}

Status MatrixReader::packed_integers(const SafetensorsTensor& words) {
  RETURN_IF_ERROR(expect_dtype(words, "weight_packed", "I32"));
  ASSIGN_OR_RETURN(const SafetensorsTensor* size, get("weight_shape"));
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  if (size->shape != Shape{2} || (size->dtype != "I64" && size->dtype != "I32")) {
    return bad("weight_shape", "must hold two whole numbers");
  }
  if (size->dtype == "I64") {
    std::memcpy(&rows, size->data.data(), 8);
    std::memcpy(&cols, size->data.data() + 8, 8);
  } else {
    std::int32_t both[2];
    std::memcpy(both, size->data.data(), 8);
    rows = both[0];
    cols = both[1];
  }
  RETURN_IF_ERROR(set_size("weight_shape", rows, cols));
  bool four = false;
  bool eight = false;
  for (const QuantScheme& scheme : quantization_.schemes) {
    if (scheme.is_float) continue;
    four = four || scheme.bits == 4;
    eight = eight || scheme.bits == 8;
  }
  four = four && words.shape == Shape{rows, divide_up(cols, 8)};
  eight = eight && words.shape == Shape{rows, divide_up(cols, 4)};
  if (!four && !eight) {
    return bad("weight_packed", fmt::format("has the shape [{}], which holds no {} x {} matrix of "
                                            "the configured bits",
                                            fmt::join(words.shape, ", "), rows, cols));
  }
  view_.format = four ? WeightFormat::kRowInt4 : WeightFormat::kRowInt8;
  ASSIGN_OR_RETURN(const SafetensorsTensor* scales, get("weight_scale"));
  const auto type = scale_type(scales->dtype);
  if (!type || size_bytes(*type) == 1) {
    return bad("weight_scale", fmt::format("is stored as {}", scales->dtype));
  }
  RETURN_IF_ERROR(match_scales("weight_scale", scales->shape, false));
  RETURN_IF_ERROR(set_scales("weight_scale", *scales, *type));
  RETURN_IF_ERROR(read_zeros("weight_zero_point"));
  bool reordered = false;
  for (const QuantScheme& scheme : quantization_.schemes) {
    reordered = reordered || scheme.needs_group_index;
  }
  return read_group_index("weight_g_idx", reordered && quantization_.schemes.size() == 1);
}

// MXFP4 and NVFP4: U8 [out, in / 2], the even column in the low nibble.
Status MatrixReader::packed_floats(const SafetensorsTensor& words) {
  if (words.shape.size() != 2) return bad("weight_packed", "must have 2 dimensions");
  if (words.shape[1] > kSideMax) return bad("weight_packed", "is too large");
  RETURN_IF_ERROR(set_size("weight_packed", words.shape[0], words.shape[1] * 2));
  view_.format = WeightFormat::kE2M1;
  ASSIGN_OR_RETURN(const SafetensorsTensor* scales, get("weight_scale"));
  const bool nvidia = scales->dtype == "F8_E4M3";
  if (!nvidia && scales->dtype != "U8" && scales->dtype != "F8_E8M0") {
    return bad("weight_scale", fmt::format("is stored as {}", scales->dtype));
  }
  const QuantScheme scheme{4, true, true, false, ScaleStrategy::kGroup, nvidia ? 16 : 32, 0};
  const Shape expected{view_.rows, divide_up(view_.cols, scheme.group_columns)};
  if (!fits(scheme, scales->shape)) {
    RETURN_IF_ERROR(expect_shape(*scales, "weight_scale", expected));
  }
  RETURN_IF_ERROR(
      set_scales("weight_scale", *scales, nvidia ? ScaleType::kE4M3 : ScaleType::kE8M0));
  if (!nvidia) return {};
  ASSIGN_OR_RETURN(const SafetensorsTensor* global, get("weight_global_scale"));
  float divisor = 0;
  if (global->dtype != "F32" || global->data.size() != sizeof(divisor)) {
    return bad("weight_global_scale", "must hold one F32");
  }
  std::memcpy(&divisor, global->data.data(), sizeof(divisor));
  view_.tensor_scale = 1.0F / divisor;
  if (std::isfinite(divisor) && std::isfinite(view_.tensor_scale)) return {};
  return bad("weight_global_scale", fmt::format("is {}", divisor));
}

Result<WeightView> MatrixReader::packed() {
  if (quantization_.method != QuantMethod::kCompressedTensors) {
    return bad("weight_packed",
               "is of compressed-tensors, which the configuration does not announce");
  }
  ASSIGN_OR_RETURN(const SafetensorsTensor* words, get("weight_packed"));
  view_.data = words->data;
  if (words->dtype == "U8") {
    RETURN_IF_ERROR(packed_floats(*words));
  } else {
    RETURN_IF_ERROR(packed_integers(*words));
  }
  return view_;
}

// Scales of whole bytes: a sibling by one of the names in use.
Status MatrixReader::float_codes(const SafetensorsTensor& tensor) {
  const char* suffix = find("weight_scale_inv") != nullptr ? "weight_scale_inv"
                       : find("weight_scale") != nullptr   ? "weight_scale"
                                                           : "scale";
  const SafetensorsTensor* scales = find(suffix);
  if (scales == nullptr) {
    return bad("weight", fmt::format("is stored as {} and has no scales: none of weight_scale_inv, "
                                     "weight_scale and scale is beside it",
                                     tensor.dtype));
  }
  const auto type = scale_type(scales->dtype);
  if (!type) return bad(suffix, fmt::format("is stored as {}", scales->dtype));
  const bool bytes = tensor.dtype == "I8" || tensor.dtype == "U8" || tensor.dtype == "F4";
  if (bytes && type == ScaleType::kE8M0) {  // FP4, two in a byte
    const std::int64_t cols = tensor.shape[1] * (tensor.dtype == "F4" ? 1 : 2);
    RETURN_IF_ERROR(set_size("weight", tensor.shape[0], cols));
    if (cols % 2 != 0) return bad("weight", "has rows that do not fill their last byte");
    view_.format = WeightFormat::kE2M1;
    const QuantScheme scheme{4, true, true, false, ScaleStrategy::kGroup, 32, 0};
    if (!fits(scheme, scales->shape)) {
      RETURN_IF_ERROR(expect_shape(*scales, suffix, {view_.rows, divide_up(cols, 32)}));
    }
    return set_scales(suffix, *scales, *type);
  }
  RETURN_IF_ERROR(set_size("weight", tensor.shape[0], tensor.shape[1]));
  if (tensor.dtype == "I8") {
    view_.format = WeightFormat::kInt8;
    if (find("weight_zero_point") != nullptr) {
      return bad("weight_zero_point", "shifts 8-bit codes, which is not supported");
    }
  } else if (tensor.dtype == "F8_E4M3") {
    view_.format = WeightFormat::kF8E4M3;
  } else if (tensor.dtype == "F8_E5M2") {
    view_.format = WeightFormat::kF8E5M2;
  } else {
    return bad("weight", fmt::format("is stored as {}, which is not supported here", tensor.dtype));
  }
  RETURN_IF_ERROR(match_scales(suffix, scales->shape, view_.format != WeightFormat::kInt8));
  return set_scales(suffix, *scales, *type);
}

Result<WeightView> MatrixReader::codes() {
  ASSIGN_OR_RETURN(const SafetensorsTensor* tensor, get("weight"));
  if (tensor->shape.size() != 2) {
    return wrong_rank(path_, part("weight"), 2, static_cast<int>(tensor->shape.size()));
  }
  if (tensor->shape[1] > kSideMax) return bad("weight", "is too large");
  view_.data = tensor->data;
  RETURN_IF_ERROR(float_codes(*tensor));
  return view_;
}

}  // namespace

bool has_quantized_parts(const SafetensorsMap& tensors, std::string_view name) {
  if (!name.ends_with(kWeightSuffix)) return false;
  const std::string stem(stem_of(name));
  return tensors.contains(stem + ".qweight") || tensors.contains(stem + ".weight_packed");
}

bool is_code_dtype(std::string_view dtype) {
  return dtype == "F8_E4M3" || dtype == "F8_E5M2" || dtype == "I8" || dtype == "U8" ||
         dtype == "F4";
}

Result<WeightView> quantized_matrix(const SafetensorsMap& tensors, const Quantization& quantization,
                                    const std::filesystem::path& path, std::string_view name) {
  MatrixReader reader(tensors, quantization, path, name);
  const std::string stem(stem_of(name));
  if (tensors.contains(stem + ".qweight")) return reader.gptq_or_awq();
  if (tensors.contains(stem + ".weight_packed")) return reader.packed();
  return reader.codes();
}

std::int64_t parameter_count(const SafetensorsMap& tensors, const Quantization& quantization,
                             const SafetensorsTensor& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t dim : tensor.shape) elements *= dim;
  const std::size_t dot = tensor.name.rfind('.');
  if (quantization.schemes.empty() || dot == std::string::npos) return elements;
  const std::string stem = tensor.name.substr(0, dot);
  const std::string_view suffix = std::string_view(tensor.name).substr(dot + 1);
  const auto dtype_of = [&](std::string_view part) {
    const auto found = tensors.find(fmt::format("{}.{}", stem, part));
    return found == tensors.end() ? std::string_view() : std::string_view(found->second->dtype);
  };
  if (suffix == "qweight") return elements * (32 / quantization.schemes.front().bits);
  if (suffix == "weight_packed") {
    if (tensor.dtype == "U8") return elements * 2;
    const bool eight = std::ranges::all_of(
        quantization.schemes, [](const QuantScheme& scheme) { return scheme.bits == 8; });
    return elements * (eight ? 4 : 8);
  }
  if (suffix == "weight") {
    const bool bytes = tensor.dtype == "I8" || tensor.dtype == "U8";
    return elements * (bytes && dtype_of("scale") == "F8_E8M0" ? 2 : 1);
  }
  const bool belongs = !dtype_of("qweight").empty() || !dtype_of("weight_packed").empty() ||
                       is_code_dtype(dtype_of("weight"));
  return belongs && suffix != "bias" ? 0 : elements;
}

}  // namespace kun
