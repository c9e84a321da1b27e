// Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 with F16 scales. Layouts as in ggml's
// ggml-common.h (block_q4_0 ...) and ggml-quants.c (dequantize_row_*).
#include "backends/cpu/block_bytes.h"
#include "backends/cpu/unpack.h"
#include "base/check.h"

namespace kun {
namespace {

constexpr int kHalf = kBlockColumns / 2;

// Element i in the low nibble of byte i, element i + 16 in its high nibble; less `offset`.
void nibbles(const std::byte* bytes, int offset, std::int8_t* codes) {
  for (int i = 0; i < kHalf; ++i) {
    codes[i] = static_cast<std::int8_t>(low_nibble(bytes[i]) - offset);
    codes[i + kHalf] = static_cast<std::int8_t>(high_nibble(bytes[i]) - offset);
  }
}

// As above, with bit i of `fifth_bits` on top of element i.
void five_bits(const std::byte* bytes, std::uint32_t fifth_bits, int offset, std::int8_t* codes) {
  nibbles(bytes, offset, codes);
  for (int i = 0; i < kBlockColumns; ++i) {
    codes[i] = static_cast<std::int8_t>(codes[i] + static_cast<int>((fifth_bits >> i) & 1U) * 16);
  }
}

}  // namespace

void unpack_classic(WeightFormat format, const std::byte* row, std::int64_t block,
                    UnpackedBlock* out) {
  const std::byte* data = row + block * block_shape(format).bytes;
  out->scale_f16 = u16_at(data);
  switch (format) {
    case WeightFormat::kQ4_0: nibbles(data + 2, 8, out->codes); return;
    case WeightFormat::kQ4_1:
      out->min_f16 = u16_at(data + 2);
      nibbles(data + 4, 0, out->codes);
      return;
    case WeightFormat::kQ5_0: five_bits(data + 6, u32_at(data + 2), 16, out->codes); return;
    case WeightFormat::kQ5_1:
      out->min_f16 = u16_at(data + 2);
      five_bits(data + 8, u32_at(data + 4), 0, out->codes);
      return;
    case WeightFormat::kQ8_0: std::memcpy(out->codes, data + 2, kBlockColumns); return;
    default: CHECK(false);
  }
}

}  // namespace kun
