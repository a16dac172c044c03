// As many floats at a time as a register holds, and loads of float32 and
// bfloat16.

#ifndef SPECJAX_VECTORS_H_
#define SPECJAX_VECTORS_H_

#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

// Where a call would bring registers to memory and back.
#if defined(__GNUC__)
#define SPECJAX_INLINE inline __attribute__((always_inline))
#else
#define SPECJAX_INLINE inline
#endif

namespace specjax {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
#else
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
#endif

typedef float Wide __attribute__((vector_size(4 * kLanes)));
typedef float Four __attribute__((vector_size(16)));
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));
typedef int32_t Whole __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Short __attribute__((vector_size(2 * kLanes)));
typedef int8_t Bytes __attribute__((vector_size(2 * kLanes)));
typedef int16_t Halves __attribute__((vector_size(4 * kLanes)));

inline Wide Load(const float* from) {
  Wide out;
  std::memcpy(&out, from, sizeof(out));
  return out;
}

// Spelled out: a compiler that fuses as it sees fit does so in some blocks and
// not in others, and a sum would depend on its neighbours.
inline void MultiplyAdd(Wide left, Wide right, Wide* sum) {
#if defined(__AVX512F__)
  *sum = (Wide)_mm512_fmadd_ps((__m512)left, (__m512)right, (__m512)*sum);
#elif defined(__AVX2__) && defined(__FMA__)
  *sum = (Wide)_mm256_fmadd_ps((__m256)left, (__m256)right, (__m256)*sum);
#else
  *sum += left * right;
#endif
}

// Whole numbers of a byte as such of two, twice as many as there are lanes.
inline Halves LoadHalves(const int8_t* from) {
#if defined(__AVX512BW__)  // Left to itself a compiler goes one by one.
  __m256i some;
  std::memcpy(&some, from, sizeof(some));
  return (Halves)_mm512_cvtepi8_epi16(some);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  __m128i some;
  std::memcpy(&some, from, sizeof(some));
  return (Halves)_mm256_cvtepi8_epi16(some);
#else
  Bytes some;
  std::memcpy(&some, from, sizeof(some));
  return __builtin_convertvector(some, Halves);
#endif
}

// With the products of neighbours, which are two to a lane.
inline Whole Added(Halves left, Halves right, Whole sum) {
#if defined(__AVX512VNNI__)
  return (Whole)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)left,
                                    (__m512i)right);
#elif defined(__AVX512BW__)
  return sum + (Whole)_mm512_madd_epi16((__m512i)left, (__m512i)right);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return sum + (Whole)_mm256_madd_epi16((__m256i)left, (__m256i)right);
#else
  Whole a = (Whole)left, b = (Whole)right;
  return sum + (a >> 16) * (b >> 16) + (a << 16 >> 16) * (b << 16 >> 16);
#endif
}

// To stay in a register: left to itself a compiler reads it from memory for each
// multiplication, and reads are what there are too few of.
inline void Keep(Wide* v) {
#if defined(__AVX512F__) && defined(__GNUC__)
  asm("" : "+v"(*v));
#elif defined(__AVX2__) && defined(__GNUC__)
  asm("" : "+x"(*v));
#endif
}

// Values in their order.
inline Wide LoadWide(const float* from) { return Load(from); }
inline Wide LoadWide(const uint16_t* from) {
  Short some;
  std::memcpy(&some, from, sizeof(some));
  return (Wide)(__builtin_convertvector(some, Bits) << 16);
}

inline Wide Spread(float x) { return Wide{} + x; }

inline float ToFloat(float x) { return x; }
inline float ToFloat(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

// To the nearest, ties to even, as XLA rounds.
inline void FromFloat(float x, float* to) { *to = x; }
inline void FromFloat(float x, uint16_t* to) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  *to = x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// The same, many at a time: float32 that a W holds exactly.
template <typename W>
inline Wide Rounded(Wide x) {
  if (sizeof(W) == 4) return x;
  Bits bits = (Bits)x;
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  return (Wide)((Whole)(x == x) & (Whole)bits |
                ~(Whole)(x == x) & (Whole)(Bits{} + 0x7fc00000u));
}

inline void Store(Wide x, float* to) { std::memcpy(to, &x, sizeof(x)); }
inline void Store(Wide x, uint16_t* to) {  // What `Rounded` gave.
  Short some = __builtin_convertvector((Bits)x >> 16, Short);
  std::memcpy(to, &some, sizeof(some));
}

inline float Sum(Wide v) {
  Four part[kLanes / 4];
  std::memcpy(part, &v, sizeof(v));
  for (int many = kLanes / 8; many; many /= 2) {
    for (int i = 0; i < many; ++i) part[i] += part[i + many];
  }
  Four sum = part[0];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// `Sum` of each of N, in one go where lanes can be moved about by whole
// registers: alone each takes as long as five steps of a row.
template <int N>
SPECJAX_INLINE void SumEach(const Wide* v, float* out) {
#if defined(__AVX512F__)
#pragma GCC unroll 4
  for (int from = 0; from < N; from += 16) {
    int count = N - from < 16 ? N - from : 16;
    // Four lanes of a register after another take the sums of v's 0, 4, 8, 12,
    // of 1, 5, 9, 13, and so on: those of neighbours come to lie together.
    __m512 some[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      int index = i / 4 + i % 4 * 4;
      some[i] = (__m512)(index < count ? v[from + index] : Wide{});
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      __m512 left = some[2 * i], right = some[2 * i + 1];
      some[i] = _mm512_add_ps(_mm512_shuffle_f32x4(left, right, 0x44),
                              _mm512_shuffle_f32x4(left, right, 0xee));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512 left = some[2 * i], right = some[2 * i + 1];
      some[i] = _mm512_add_ps(_mm512_shuffle_f32x4(left, right, 0x88),
                              _mm512_shuffle_f32x4(left, right, 0xdd));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      __m512 left = some[2 * i], right = some[2 * i + 1];
      some[i] = _mm512_add_ps(_mm512_unpacklo_ps(left, right),
                              _mm512_unpackhi_ps(left, right));
    }
    __m512d left = (__m512d)some[0], right = (__m512d)some[1];
    Wide sums = (Wide)_mm512_add_ps((__m512)_mm512_unpacklo_pd(left, right),
                                    (__m512)_mm512_unpackhi_pd(left, right));
    std::memcpy(out + from, &sums, count * sizeof(float));
  }
#else
  for (int i = 0; i < N; ++i) out[i] = Sum(v[i]);
#endif
}

// e^x for x <= 0, within 1 unit in the last place; 0 below -87, NaN for NaN.
inline Wide Exp(Wide x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
  Wide n = x * 1.44269504f + kRounder - kRounder;
  Wide r = x;
  MultiplyAdd(n, Spread(-0.693359375f), &r);  // The logarithm of 2,
  MultiplyAdd(n, Spread(2.12194440e-4f), &r);  // in two parts.
  // Taylor's series; |r| is at most .35.
  Wide y = Spread(1.0f / 5040);
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, .5f, 1.f, 1.f}) {
    Wide sum = Spread(c);
    MultiplyAdd(y, r, &sum);
    y = sum;
  }
  Whole power = (__builtin_convertvector(n, Whole) + 127) << 23;
  Whole tiny = x < -87.0f;
  return (Wide)((Whole)(y * (Wide)power) & ~tiny);
}

// 1 / (1 + e^-x)
inline Wide Logistic(Wide x) {
  Whole negative = x < 0.0f;
  Wide power = Exp((Wide)((Whole)x | (Whole)(Bits{} + 0x80000000u)));
  Wide one = Spread(1.0f);
  Wide top = (Wide)(negative & (Whole)power | ~negative & (Whole)one);
  return top / (one + power);
}

}  // namespace specjax

#endif
