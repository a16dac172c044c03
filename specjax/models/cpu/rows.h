// A few rows of x times rows of w: one thread's part of a product.
//
// A sum runs over the lanes of a register in the order of K, whatever T is: a
// result depends on its own row of x alone, bit for bit.

#ifndef SPECJAX_ROWS_H_
#define SPECJAX_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "vectors.h"

namespace specjax {

// Of x, in one register block.
constexpr int kMostRows = kRegisters == 32 ? 8 : 6;
// How far ahead of use weights are fetched: what memory takes to answer.
constexpr int64_t kAheadBytes = 4 << 10;
constexpr int64_t kLine = 64;  // Bytes that memory gives at a time.

// Asks twice: where too much is under way a request is dropped, and a step that
// waits for memory itself takes far longer than to ask again.
inline void Fetch(const void* line) {
  __builtin_prefetch(line, 0, 2);
  __builtin_prefetch(line, 0, 2);
}

// How K is gone through: a step is what parts of kLanes sums each take of a row.
template <typename W>
struct Steps {
  typedef float X;  // As which x is multiplied.
  static constexpr int kParts = 2, kStep = 2 * kLanes;

  // Lanes of a step: its first half and its second; of bfloat16, which are the
  // upper halves of float32, those at even places and those at odd ones.
  static Wide Part(const float* from, int part) {
    return Load(from + part * kLanes);
  }
  static Wide Part(const uint16_t* from, int part) {
    Bits pairs;
    std::memcpy(&pairs, from, sizeof(pairs));
    return (Wide)(part ? pairs & 0xffff0000u : pairs << 16);
  }
  static void Add(Wide left, Wide right, Wide* sum) {
    MultiplyAdd(left, right, sum);
  }
};

#if defined(__AVX512BF16__)
// Pairs of bfloat16 as they lie, whose products the processor adds up in float32;
// numbers below its normal ones count as 0.
template <>
struct Steps<uint16_t> {
  typedef uint16_t X;
  static constexpr int kParts = 1, kStep = 2 * kLanes;

  static Wide Part(const uint16_t* from, int) {
    Wide out;
    std::memcpy(&out, from, sizeof(out));
    return out;
  }
  static void Add(Wide left, Wide right, Wide* sum) {
    *sum = (Wide)_mm512_dpbf16_ps((__m512)*sum, (__m512bh)left,
                                  (__m512bh)right);
  }
};
#endif

// Whole numbers of a byte, and of two what they are multiplied with: sums are
// whole numbers as well, and may not outgrow them (see `Halved`).
template <>
struct Steps<int8_t> {
  typedef int16_t X;
  static constexpr int kParts = 2, kStep = 4 * kLanes;

  static Wide Part(const int8_t* from, int part) {
    return (Wide)LoadHalves(from + part * 2 * kLanes);
  }
  static void Add(Wide left, Wide right, Wide* sum) {
    *sum = (Wide)Added((Halves)left, (Halves)right, (Whole)*sum);
  }
};
template <>
struct Steps<int16_t> {
  static Wide Part(const int16_t* from, int part) {
    Wide out;
    std::memcpy(&out, from + part * 2 * kLanes, sizeof(out));
    return out;
  }
};

template <typename W>
inline int64_t RoundUp(int64_t k) {
  constexpr int kStep = Steps<W>::kStep;
  return (k + kStep - 1) / kStep * kStep;
}

// A step of R rows of w times T rows of x, `k` and `wide` apart.
template <int T, int R, typename W, typename X>
inline void Add(const X* x, const W* w, int64_t wide, int64_t k,
                Wide (&sums)[T][R]) {
  typedef Steps<W> S;
  for (int part = 0; part < S::kParts; ++part) {
    Wide left[R];
    for (int r = 0; r < R; ++r) {
      left[r] = S::Part(w + r * k, part);
      if (T > 1) Keep(&left[r]);
    }
    for (int t = 0; t < T; ++t) {
      Wide right = Steps<X>::Part(x + t * wide, part);
      if (R > 1) Keep(&right);
      for (int r = 0; r < R; ++r) S::Add(left[r], right, &sums[t][r]);
    }
  }
}

// R rows of w times T rows of x, which are as `Arrange` leaves them. What lies
// `ahead` in w is fetched meanwhile.
template <int T, int R, typename W>
inline void Block(const typename Steps<W>::X* x, const W* w, float* y,
                  int64_t k, int64_t n, int64_t ahead) {
  constexpr int kStep = Steps<W>::kStep;
  const int64_t wide = RoundUp<W>(k);
  Wide sums[T][R] = {};
  int64_t at = 0;
  for (; at + kStep <= k; at += kStep) {
    const W* next = w + ahead + at;
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < kStep; i += kLine / sizeof(W)) Fetch(next + r * k + i);
    }
    Add(x + at, w + at, wide, k, sums);
  }
  if (at < k) {
    W rest[R * kStep] = {};
    for (int r = 0; r < R; ++r) {
      std::memcpy(rest + r * kStep, w + r * k + at, (k - at) * sizeof(W));
    }
    Add(x + at, rest, wide, kStep, sums);
  }
  if constexpr (std::is_same<W, int8_t>::value) {
    for (int t = 0; t < T; ++t) {
      for (int r = 0; r < R; ++r) {
        sums[t][r] = __builtin_convertvector((Whole)sums[t][r], Wide);
      }
    }
  }
  float all[T * R];
  SumEach<T * R>(sums[0], all);
  for (int t = 0; t < T; ++t) {
    std::memcpy(y + t * n, all + t * R, R * sizeof(float));
  }
}

// Rows of w in a register block: eight sums or more hide the latency of an
// addition, where that is not memory's, and leave room for what is added.
template <int T>
constexpr int Beside() {
  if (kRegisters == 16) return T == 1 ? 8 : T == 2 ? 4 : T == 3 ? 3 : 2;
  return T == 1 ? 4 : T == 2 ? 8 : T <= 4 ? 6 : T <= 6 ? 4 : 3;
}

// `count` rows of w times T rows of x. Where no distance to fetch `ahead` is given
// there is a good one.
template <int T, typename W>
void Rows(const typename Steps<W>::X* x, const W* w, float* y, int64_t k,
          int64_t n, int64_t count, int64_t ahead) {
  constexpr int R = Beside<T>();
  constexpr int64_t kBytes = R * sizeof(W);
  // Whole blocks, as many as memory takes to answer.
  if (!ahead) ahead = (kAheadBytes / (kBytes * k) + 1) * R * k;
  int64_t row = 0;
  for (; row + R <= count; row += R) {
    Block<T, R>(x, w + row * k, y + row, k, n, ahead);
  }
  for (; row < count; ++row) Block<T, 1>(x, w + row * k, y + row, k, n, ahead);
}

// Calls f with t, which is at most T, as a constant.
template <int T = kMostRows, typename F>
void WithRows(int64_t t, F f) {
  if constexpr (T > 1) {
    if (t < T) return WithRows<T - 1>(t, f);
  }
  f(std::integral_constant<int, T>());
}

template <typename W>
void Few(int64_t t, const typename Steps<W>::X* x, const W* w, float* y,
         int64_t k, int64_t n, int64_t count, int64_t ahead = 0) {
  WithRows(t, [&](auto rows) {
    Rows<decltype(rows)::value>(x, w, y, k, n, count, ahead);
  });
}

// Rows of x as `Block` takes them: K rounded up to whole steps, zeros at the end,
// in the order in which parts of w are read.
template <typename W>
void Arrange(const W* x, int64_t t, int64_t k, typename Steps<W>::X* to) {
  typedef Steps<W> S;
  for (int64_t row = 0; row < t; ++row, x += k) {
    for (int64_t at = 0; at < k; at += S::kStep, to += S::kStep) {
      W some[S::kStep] = {};
      int64_t here = std::min<int64_t>(S::kStep, k - at);
      std::memcpy(some, x + at, here * sizeof(W));
      for (int part = 0; part < S::kParts; ++part) {
        Wide lanes = S::Part(some, part);
        std::memcpy(reinterpret_cast<char*>(to) + part * sizeof(lanes), &lanes,
                    sizeof(lanes));
      }
    }
  }
}

}  // namespace specjax

#endif
