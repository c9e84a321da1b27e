// Conversions between float and the narrow formats that checkpoints and caches use.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace kun {

inline float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Rounds to nearest even; NaN stays NaN.
inline std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

// IEEE binary16, subnormals, infinities and NaN included.
inline float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // infinity or NaN
    return std::bit_cast<float>(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13));
  }
  if (magnitude < 0x0400U) {  // zero or subnormal: magnitude * 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112U << 23)));
}

// Rounds to nearest even; overflow becomes infinity, NaN stays NaN.
inline std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x38800000U) {  // below 2^-14: a subnormal, units of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24F;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(scaled)));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - (112U << 23)) >> 13));
}

// OCP FP8 E4M3 ("FN"): bias 7, no infinities, 0x7F and 0xFF are NaN, subnormals in steps of 2^-9.
inline float e4m3_to_f32(std::uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  float value = 0;
  if ((code & 0x7F) == 0x7F) {
    value = std::bit_cast<float>(0x7FC00000U);
  } else if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-9F;
  } else {
    value =
        std::bit_cast<float>(static_cast<std::uint32_t>((exponent + 120) << 23 | mantissa << 20));
  }
  return (code & 0x80) != 0 ? -value : value;
}

// OCP FP8 E5M2: the upper byte of a binary16.
inline float e5m2_to_f32(std::uint8_t code) {
  return f16_to_f32(static_cast<std::uint16_t>(code << 8));
}

// OCP E8M0 scale: 2^(code - 127); 0xFF is NaN.
inline float e8m0_to_f32(std::uint8_t code) {
  if (code == 0xFF) return std::bit_cast<float>(0x7FC00000U);
  if (code == 0) return 0x1p-127F;
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

}  // namespace kun
