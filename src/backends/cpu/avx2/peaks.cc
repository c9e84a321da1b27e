// What the machine can do at best with AVX2, for benchmarks to compare with.
#include <immintrin.h>

#include "backends/cpu/avx2/parts.h"

namespace kun {
namespace {

constexpr int kChains = 8;

// 32 products of 8 bits, their sums in pairs of pairs, and the sum with an accumulator.
struct Int8 {
  static constexpr std::int64_t kOperations = 64;
  static void step(__m256i& sum, __m256i a) {
    __m256i pairs;
    asm volatile("vpmaddubsw %1, %1, %0" : "=x"(pairs) : "x"(a));
    asm volatile("vpmaddwd %1, %0, %0" : "+x"(pairs) : "x"(a));
    asm volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(pairs));
  }
};

struct F32 {
  static constexpr std::int64_t kOperations = 16;
  static void step(__m256i& sum, __m256i a) {
    asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sum) : "x"(a));
  }
};

template <class Kind>
std::int64_t peak(std::int64_t rounds) {
  const __m256i a = _mm256_setzero_si256();
  __m256i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a;
  for (std::int64_t i = 0; i < rounds; ++i) {
    Kind::step(s0, a);
    Kind::step(s1, a);
    Kind::step(s2, a);
    Kind::step(s3, a);
    Kind::step(s4, a);
    Kind::step(s5, a);
    Kind::step(s6, a);
    Kind::step(s7, a);
  }
  return rounds * kChains * Kind::kOperations;
}

std::uint64_t read_bytes(const std::byte* data, std::int64_t bytes) {
  __m256i sums[8] = {};
  for (std::int64_t i = 0; i < bytes; i += 256) {
    for (int k = 0; k < 8; ++k) {
      const auto* words = reinterpret_cast<const __m256i*>(data + i + 32 * k);
      sums[k] = _mm256_xor_si256(sums[k], _mm256_loadu_si256(words));
    }
  }
  for (int k = 1; k < 8; ++k) sums[0] = _mm256_xor_si256(sums[0], sums[k]);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sums[0], 0)) ^
         static_cast<std::uint64_t>(_mm256_extract_epi64(sums[0], 1)) ^
         static_cast<std::uint64_t>(_mm256_extract_epi64(sums[0], 2)) ^
         static_cast<std::uint64_t>(_mm256_extract_epi64(sums[0], 3));
}

}  // namespace

void add_avx2_peaks(CpuKernels* table) {
  table->peak_int8 = peak<Int8>;
  table->peak_f32 = peak<F32>;
  table->read_bytes = read_bytes;
}

}  // namespace kun
