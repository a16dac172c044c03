// y [T, N] = x [T, K] times w [N, K] transposed, for a few rows of x.
//
// Weights are read from memory once, in float32 or bfloat16; sums are float32.
// A sum runs over eight lanes in the order of K, whatever T is and however the
// rows of w are divided among threads: a row of y depends on its own row of x
// alone, bit for bit.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int kLanes = 8;
constexpr int kStep = 2 * kLanes;  // Of K, at a time.
constexpr int kMostRows = 6;       // Of x, in one register block.
constexpr int64_t kGroup = 12;     // Rows of w that wait in L1 for more of x.
// What a thread takes at a time, and what is too little to wake another for.
constexpr int64_t kChunkBytes = 128 << 10;
constexpr int64_t kAloneBytes = 192 << 10;

typedef float Wide __attribute__((vector_size(4 * kLanes)));
typedef float Four __attribute__((vector_size(16)));
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));

inline int64_t RoundUp(int64_t k) { return (k + kStep - 1) / kStep * kStep; }

inline Wide Load(const float* from) {
  Wide out;
  std::memcpy(&out, from, sizeof(out));
  return out;
}

// Spelled out: a compiler that fuses as it sees fit does so in some blocks and
// not in others, and a sum would depend on its neighbours.
inline void MultiplyAdd(Wide left, Wide right, Wide* sum) {
#if defined(__AVX2__) && defined(__FMA__)
  *sum = (Wide)_mm256_fmadd_ps((__m256)left, (__m256)right, (__m256)*sum);
#else
  *sum += left * right;
#endif
}

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

inline float Sum(Wide v) {
  Four half[2];
  std::memcpy(half, &v, sizeof(v));
  Four sum = half[0] + half[1];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// A half step of R rows of w times T rows of x, `k` and `wide` apart.
template <int kHalf, int T, int R, typename W>
inline void Add(const float* x, const W* w, int64_t wide, int64_t k,
                Wide (&sums)[R][T]) {
  Wide left[R];
  for (int r = 0; r < R; ++r) left[r] = LoadHalf<kHalf>(w + r * k);
  for (int t = 0; t < T; ++t) {
    Wide right = Load(x + t * wide + kHalf * kLanes);
    for (int r = 0; r < R; ++r) MultiplyAdd(left[r], right, &sums[r][t]);
  }
}

// R rows of w times T rows of x. Rows of x are K rounded up to whole steps,
// zeros at the end, in the order in which `LoadHalf` reads those of w.
template <int T, int R, typename W>
inline void Block(const float* x, const W* w, float* y, int64_t k, int64_t n) {
  const int64_t wide = RoundUp(k);
  Wide sums[R][T] = {};
  int64_t at = 0;
  for (; at + kStep <= k; at += kStep) {
    // What the next block reads, on its way while this one multiplies.
    for (int r = 0; r < R; ++r) __builtin_prefetch(w + (R + r) * k + at, 0, 2);
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
  return T == 1 ? 8 : T <= 3 ? 4 : T == 4 ? 3 : 2;
}

// `count` rows of w times T rows of x.
template <int T, typename W>
void Rows(const float* x, const W* w, float* y, int64_t k, int64_t n,
          int64_t count) {
  constexpr int R = Beside<T>();
  int64_t row = 0;
  for (; row + R <= count; row += R) {
    Block<T, R>(x, w + row * k, y + row, k, n);
  }
  for (; row < count; ++row) Block<T, 1>(x, w + row * k, y + row, k, n);
}

template <typename W>
void Few(int64_t t, const float* x, const W* w, float* y, int64_t k, int64_t n,
         int64_t count) {
  switch (t) {
    case 1: return Rows<1>(x, w, y, k, n, count);
    case 2: return Rows<2>(x, w, y, k, n, count);
    case 3: return Rows<3>(x, w, y, k, n, count);
    case 4: return Rows<4>(x, w, y, k, n, count);
    case 5: return Rows<5>(x, w, y, k, n, count);
    default: return Rows<6>(x, w, y, k, n, count);
  }
}

template <typename W>
struct Work {
  const W* w;
  float* y;
  int64_t t, k, n, chunk, chunks;
  const float* x;  // As `Block` takes it,
  std::vector<float> arranged;  // and where it lies if not as it came.
  std::atomic<int64_t> next{0}, done{0};

  // Takes chunks until there are none. Who comes late touches no array.
  void Run() {
    for (int64_t mine; (mine = next.fetch_add(1)) < chunks;) {
      int64_t row = mine * chunk;
      Multiply(row, std::min(chunk, n - row));
      done.fetch_add(1, std::memory_order_release);
    }
  }

  void Multiply(int64_t row, int64_t count) {
    if (t <= kMostRows) return Few(t, x, w + row * k, y + row, k, n, count);
    // Several blocks of x: a few rows of w at a time, from cache but for the
    // first block.
    int64_t blocks = (t + kMostRows - 1) / kMostRows;
    for (int64_t end = row + count; row < end; row += kGroup) {
      int64_t some = std::min(kGroup, end - row);
      for (int64_t block = 0; block < blocks; ++block) {
        int64_t from = block * t / blocks, to = (block + 1) * t / blocks;
        Few(to - from, x + from * RoundUp(k), w + row * k, y + from * n + row,
            k, n, some);
      }
    }
  }
};

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

template <typename W>
ffi::Error Product(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer w,
                   ffi::Result<ffi::AnyBuffer> y) {
  auto work = std::make_shared<Work<W>>();
  work->t = x.dimensions()[0];
  work->k = x.dimensions()[1];
  work->n = w.dimensions()[0];
  work->w = static_cast<const W*>(w.untyped_data());
  work->y = static_cast<float*>(y->untyped_data());
  auto* rows = static_cast<const W*>(x.untyped_data());
  if (std::is_same<W, float>::value && work->k % kStep == 0) {
    work->x = reinterpret_cast<const float*>(rows);
  } else {
    work->arranged.resize(work->t * RoundUp(work->k));
    Arrange(rows, work->t, work->k, work->arranged.data());
    work->x = work->arranged.data();
  }
  int64_t row = work->k * (int64_t)sizeof(W);
  // A multiple of every number of rows in a register block.
  work->chunk = std::max<int64_t>(kChunkBytes / row / 24, 1) * 24;
  if (work->n * row <= kAloneBytes) work->chunk = work->n;
  work->chunks = (work->n + work->chunk - 1) / work->chunk;
  int64_t helpers = std::min(pool.num_threads(), work->chunks) - 1;
  for (int64_t i = 0; i < helpers; ++i) {
    pool.Schedule([work] { work->Run(); });
  }
  work->Run();
  // Only for chunks that somebody is at: never for a helper to be started,
  // whose thread may itself be waiting here.
  for (int64_t spins = 0;
       work->done.load(std::memory_order_acquire) < work->chunks; ++spins) {
    if (spins > 1000) std::this_thread::yield();
  }
  return ffi::Error::Success();
}

}  // namespace

#define SPECJAX_PRODUCT(name, type)                         \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, Product<type>,        \
                                ffi::Ffi::Bind()            \
                                    .Ctx<ffi::ThreadPool>() \
                                    .Arg<ffi::AnyBuffer>()  \
                                    .Arg<ffi::AnyBuffer>()  \
                                    .Ret<ffi::AnyBuffer>())

SPECJAX_PRODUCT(specjax_product_float32, float);
SPECJAX_PRODUCT(specjax_product_bfloat16, uint16_t);
