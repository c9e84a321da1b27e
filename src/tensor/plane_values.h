// Reads codes, scales and zeros of weights with planes: for the reference dequantizer, and for
// backends that keep codes as they are.
#pragma once

#include <cstdint>

#include "tensor/weight_view.h"

namespace kun {

// Whether the codes are integers rather than small floats.
constexpr bool has_integer_codes(WeightFormat format) {
  return format >= WeightFormat::kInt8;
}

// Bits of one code.
int code_bits(WeightFormat format);

// Codes of columns [first, first + count) of a row, as stored. Requires: has_integer_codes.
void read_codes(const WeightView& view, std::int64_t row, std::int64_t first, std::int64_t count,
                std::int16_t* out);

// Twice the E2M1 values of columns [first, first + count). Requires: kE2M1.
void read_e2m1_doubled(const WeightView& view, std::int64_t row, std::int64_t first,
                       std::int64_t count, std::int8_t* out);

std::int64_t group_of(const WeightView& view, std::int64_t col);
float scale_of(const WeightView& view, std::int64_t row, std::int64_t group);
// 0 for formats without zeros.
int zero_of(const WeightView& view, std::int64_t row, std::int64_t group);

void dequantize_planes(const WeightView& view, std::int64_t row, float* out);

}  // namespace kun
