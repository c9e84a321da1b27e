// AMX tiles: eight registers of up to 16 rows of 64 bytes, whose shapes a thread sets before it
// uses them, and products that add to one tile of sums what two others hold (Intel 64 and IA-32
// Architectures Software Developer's Manual, volume 1, chapter 18). In an unnamed namespace, so
// that every kernel file has its own copy (see kernels.h). In assembly, because GCC's intrinsics do
// not tell the compiler that a load reads memory.
#pragma once

#include <cstdint>

namespace kun {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

// The shapes of this thread's tiles while it lives. Without shapes there is no state of tiles that
// the system would have to save.
class TileShapes {
 public:
  TileShapes& set(int tile, int rows, int row_bytes) {
    rows_[tile] = static_cast<std::uint8_t>(rows);
    row_bytes_[tile] = static_cast<std::uint16_t>(row_bytes);
    return *this;
  }
  void load() const { asm volatile("ldtilecfg %0" : : "m"(*this)); }
  static void release() { asm volatile("tilerelease"); }

 private:
  [[maybe_unused]] std::uint8_t palette_ = 1;
  [[maybe_unused]] std::uint8_t start_row_ = 0;
  [[maybe_unused]] std::uint8_t reserved_[14] = {};
  std::uint16_t row_bytes_[16] = {};
  std::uint8_t rows_[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

template <int kTile>
[[gnu::always_inline]] inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

template <int kTile>
[[gnu::always_inline]] inline void tile_load(const void* rows, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
[[gnu::always_inline]] inline void tile_store(void* rows, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
}

// sums[t][r] += sum over 2 k + i of a[t][2 k + i] * b[k][2 r + i], BF16. Denormals are zeros; even
// and odd elements are summed apart, each product added by a fused operation.
template <int kSums, int kA, int kB>
[[gnu::always_inline]] inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

}  // namespace
}  // namespace kun
