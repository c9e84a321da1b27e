// What the machine can do at best, for benchmarks to compare with. The multiplies are written in
// assembly: GCC spills so many accumulators of a loop and would report half the peak.
#include <immintrin.h>

#include "backends/cpu/avx512/parts.h"

namespace kun {
namespace {

constexpr int kChains = 16;  // independent accumulators: more than latency times throughput

struct Int8 {
  static constexpr std::int64_t kOperations = 128;  // 64 products, 64 sums
  static void step(__m512i& sum, __m512i a) {
    asm volatile("vpdpbusd %1, %1, %0" : "+v"(sum) : "v"(a));
  }
};

struct Bf16 {
  static constexpr std::int64_t kOperations = 64;
  static void step(__m512i& sum, __m512i a) {
    asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(a));
  }
};

struct F32 {
  static constexpr std::int64_t kOperations = 32;
  static void step(__m512i& sum, __m512i a) {
    asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(a));
  }
};

template <class Kind>
std::int64_t peak(std::int64_t rounds) {
  const __m512i a = _mm512_setzero_si512();
  __m512i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a;
  __m512i s8 = a, s9 = a, s10 = a, s11 = a, s12 = a, s13 = a, s14 = a, s15 = a;
  for (std::int64_t i = 0; i < rounds; ++i) {
    Kind::step(s0, a);
    Kind::step(s1, a);
    Kind::step(s2, a);
    Kind::step(s3, a);
    Kind::step(s4, a);
    Kind::step(s5, a);
    Kind::step(s6, a);
    Kind::step(s7, a);
    Kind::step(s8, a);
    Kind::step(s9, a);
    Kind::step(s10, a);
    Kind::step(s11, a);
    Kind::step(s12, a);
    Kind::step(s13, a);
    Kind::step(s14, a);
    Kind::step(s15, a);
  }
  return rounds * kChains * Kind::kOperations;
}

std::uint64_t read_bytes(const std::byte* data, std::int64_t bytes) {
  __m512i a = _mm512_setzero_si512();
  __m512i b = a;
  __m512i c = a;
  __m512i d = a;
  for (std::int64_t i = 0; i < bytes; i += 256) {
    a = _mm512_xor_si512(a, _mm512_loadu_si512(data + i));
    b = _mm512_xor_si512(b, _mm512_loadu_si512(data + i + 64));
    c = _mm512_xor_si512(c, _mm512_loadu_si512(data + i + 128));
    d = _mm512_xor_si512(d, _mm512_loadu_si512(data + i + 192));
  }
  const __m512i all = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
  return static_cast<std::uint64_t>(_mm512_reduce_or_epi64(all));
}

}  // namespace

void add_avx512_peaks(CpuKernels* table) {
  table->peak_int8 = peak<Int8>;
  table->peak_bf16 = peak<Bf16>;
  table->peak_f32 = peak<F32>;
  table->read_bytes = read_bytes;
}

}  // namespace kun
