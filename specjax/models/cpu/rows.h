// A few rows of x times rows of w: one thread's part of a product.
//
// A sum runs over eight lanes in the order of K, whatever T is: a result depends
// on its own row of x alone, bit for bit.

#ifndef SPECJAX_ROWS_H_
#define SPECJAX_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace specjax {

constexpr int kStep = 2 * kLanes;  // Of K, at a time.
constexpr int kMostRows = 6;       // Of x, in one register block.
// How far ahead of use weights are fetched: what memory takes to answer.
constexpr int64_t kAheadBytes = 20 << 10;

inline int64_t RoundUp(int64_t k) { return (k + kStep - 1) / kStep * kStep; }

// Lanes of a step: its first half and its second; of sixteen bfloat16, which
// are the upper halves of float32, those at even places and those at odd ones.
template <int kHalf>
inline Wide LoadHalf(const float* from) {
  return Load(from + kHalf * kLanes);
}
template <int kHalf>
inline Wide LoadHalf(const uint16_t* from) {
  Bits pairs;
  std::memcpy(&pairs, from, sizeof(pairs));
  return (Wide)(kHalf ? pairs & 0xffff0000u : pairs << 16);
}

// A half step of R rows of w times T rows of x, `k` and `wide` apart.
template <int kHalf, int T, int R, typename W>
inline void Add(const float* x, const W* w, int64_t wide, int64_t k,
                Wide (&sums)[R][T]) {
  Wide left[R];
  for (int r = 0; r < R; ++r) {
    left[r] = LoadHalf<kHalf>(w + r * k);
    if (T > 1) Keep(&left[r]);
  }
  for (int t = 0; t < T; ++t) {
    Wide right = Load(x + t * wide + kHalf * kLanes);
    if (R > 1) Keep(&right);
    for (int r = 0; r < R; ++r) MultiplyAdd(left[r], right, &sums[r][t]);
  }
}

// R rows of w times T rows of x. Rows of x are K rounded up to whole steps,
// zeros at the end, in the order in which `LoadHalf` reads those of w. What lies
// `ahead` in w is fetched meanwhile.
template <int T, int R, typename W>
inline void Block(const float* x, const W* w, float* y, int64_t k, int64_t n,
                  int64_t ahead) {
  const int64_t wide = RoundUp(k);
  Wide sums[R][T] = {};
  int64_t at = 0;
  for (; at + kStep <= k; at += kStep) {
    for (int r = 0; r < R; ++r) {
      __builtin_prefetch(w + ahead + r * k + at, 0, 2);
    }
    Add<0>(x + at, w + at, wide, k, sums);
    Add<1>(x + at, w + at, wide, k, sums);
  }
  if (at < k) {
    W rest[R * kStep] = {};
    for (int r = 0; r < R; ++r) {
      std::memcpy(rest + r * kStep, w + r * k + at, (k - at) * sizeof(W));
    }
    Add<0>(x + at, rest, wide, kStep, sums);
    Add<1>(x + at, rest, wide, kStep, sums);
  }
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) y[t * n + r] = Sum(sums[r][t]);
  }
}

// Rows of w in a register block: eight to twelve sums hide the latency of an
// addition, and leave room in sixteen registers.
template <int T>
constexpr int Beside() {
  return T == 1 ? 8 : T == 2 ? 4 : T == 3 ? 3 : 2;
}

// `count` rows of w times T rows of x. Where no distance to fetch `ahead` is given
// there is a good one.
template <int T, typename W>
void Rows(const float* x, const W* w, float* y, int64_t k, int64_t n,
          int64_t count, int64_t ahead) {
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

template <typename W>
void Few(int64_t t, const float* x, const W* w, float* y, int64_t k, int64_t n,
         int64_t count, int64_t ahead = 0) {
  switch (t) {
    case 1: return Rows<1>(x, w, y, k, n, count, ahead);
    case 2: return Rows<2>(x, w, y, k, n, count, ahead);
    case 3: return Rows<3>(x, w, y, k, n, count, ahead);
    case 4: return Rows<4>(x, w, y, k, n, count, ahead);
    case 5: return Rows<5>(x, w, y, k, n, count, ahead);
    default: return Rows<6>(x, w, y, k, n, count, ahead);
  }
}

// Rows of x as `Block` takes them.
template <typename W>
void Arrange(const W* x, int64_t t, int64_t k, float* to) {
  for (int64_t row = 0; row < t; ++row, x += k) {
    for (int64_t at = 0; at < k; at += kStep, to += kStep) {
      W some[kStep] = {};
      std::memcpy(some, x + at, std::min<int64_t>(kStep, k - at) * sizeof(W));
      Wide first = LoadHalf<0>(some), second = LoadHalf<1>(some);
      std::memcpy(to, &first, sizeof(first));
      std::memcpy(to + kLanes, &second, sizeof(second));
    }
  }
}

}  // namespace specjax

#endif
