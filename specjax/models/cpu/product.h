// y [T, N] = x [T, K] times w [N, K] transposed, for a few rows of x, and for one
// w or several.
//
// Weights are read from memory once, in float32 or bfloat16; sums are float32.
// A row of y depends on its own row of x alone, bit for bit, however the rows of
// w are divided among threads.

#ifndef SPECJAX_PRODUCT_H_
#define SPECJAX_PRODUCT_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "rows.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {

// Rows of w that wait in cache for more of x.
constexpr int64_t kGroup = 24;
// What a thread takes at a time, and what is too little to wake another for.
// Twice as much where reading is all there is to do.
constexpr int64_t kChunkBytes = 128 << 10;
constexpr int64_t kAloneBytes = 192 << 10;

inline int64_t ChunkBytes(int64_t t) {
  return t == 1 ? 2 * kChunkBytes : kChunkBytes;
}

// x as `Block` takes it: as it lies, or in `own`.
template <typename W, typename X>
const X* Arranged(const W* x, int64_t t, int64_t k, std::vector<X>* own) {
  if constexpr (std::is_same<W, X>::value) {
    if (k % Steps<W>::kStep == 0) return x;
  }
  own->resize(t * RoundUp<W>(k));
  Arrange(x, t, k, own->data());
  return own->data();
}

// What int8 is multiplied with: rows of x as whole numbers of two bytes, and what
// each of them is to be multiplied with again. A sum of k products with a byte has
// no more than 31 bits.
template <typename From>
const int16_t* Halved(const From* x, int64_t t, int64_t k,
                      std::vector<int16_t>* own, std::vector<float>* sizes) {
  const int64_t wide = RoundUp<int8_t>(k);
  const float most = std::min<float>(32767, 16e6f / (wide / kLanes));
  own->assign(t * wide, 0);
  sizes->resize(t);
  for (int64_t row = 0; row < t; ++row, x += k) {
    float top = 0;
    bool odd = false;
    for (int64_t i = 0; i < k; ++i) {
      float size = std::fabs(ToFloat(x[i]));
      top = std::max(top, size);
      odd |= !(size < std::numeric_limits<float>::infinity());
    }
    if (odd) {  // What comes out is NaN.
      (*sizes)[row] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    (*sizes)[row] = top / most;
    const float scale = top > 0 ? most / top : 0;
    int16_t* to = own->data() + row * wide;
    for (int64_t i = 0; i < k; ++i) {
      to[i] = (int16_t)std::lrint(ToFloat(x[i]) * scale);
    }
  }
  return own->data();
}

template <typename W>
struct ProductJob : Job {
  struct Weight {
    const W* w;
    float* y;
    int64_t n, first;  // Its first part.
    const float* scale;  // Of each row of w, or null.
  };
  std::vector<Weight> weights;
  int64_t t, k, chunk;
  const typename Steps<W>::X* x;  // As `Block` takes it,
  std::vector<typename Steps<W>::X> arranged;  // if not as it came.
  std::vector<float> sizes;  // Of rows of x, where there are scales.

  void Do(int64_t part) override {
    auto mine = weights.end() - 1;
    while (mine->first > part) --mine;
    int64_t row = (part - mine->first) * chunk, n = mine->n;
    int64_t count = std::min(chunk, n - row);
    const W* w = mine->w + row * k;
    float* y = mine->y + row;
    Multiply(w, y, n, count);
    if (!mine->scale) return;
    const float* scale = mine->scale + row;
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t j = 0; j < count; ++j) y[i * n + j] *= scale[j] * sizes[i];
    }
  }

  void Multiply(const W* w, float* y, int64_t n, int64_t count) const {
    if (t <= kMostRows) return Few(t, x, w, y, k, n, count);
    // Several blocks of x: a few rows of w at a time, from cache but for the
    // first block.
    int64_t blocks = (t + kMostRows - 1) / kMostRows;
    for (int64_t at = 0; at < count; at += kGroup) {
      int64_t some = std::min(kGroup, count - at);
      for (int64_t block = 0; block < blocks; ++block) {
        int64_t from = block * t / blocks, to = (block + 1) * t / blocks;
        Few(to - from, x + from * RoundUp<W>(k), w + at * k, y + from * n + at, k,
            n, some, kGroup * k);
      }
    }
  }
};

// Runs it, of weights whose parts are not yet counted.
template <typename W>
void RunProduct(xla::ffi::ThreadPool pool, ProductJob<W>* job) {
  int64_t row = job->k * (int64_t)sizeof(W), total = 0;
  for (const auto& weight : job->weights) total += weight.n;
  // A multiple of every number of rows in a register block.
  job->chunk = std::max<int64_t>(ChunkBytes(job->t) / row / 24, 1) * 24;
  if (total * row <= kAloneBytes) job->chunk = total;
  for (auto& weight : job->weights) {
    weight.first = job->parts;
    job->parts += (weight.n + job->chunk - 1) / job->chunk;
  }
  const auto& last = job->weights.back();
  job->data = reinterpret_cast<const char*>(last.w);
  job->bytes = last.n * row;
  RunOn(total * row <= kAloneBytes ? 1 : pool.num_threads(), job);
}

// Of one x with several weights.
template <typename W>
xla::ffi::Error Product(xla::ffi::ThreadPool pool, xla::ffi::AnyBuffer x,
                        xla::ffi::RemainingArgs weights,
                        xla::ffi::RemainingRets results) {
  ProductJob<W> job;
  job.t = x.dimensions()[0];
  job.k = x.dimensions()[1];
  job.x = Arranged(static_cast<const W*>(x.untyped_data()), job.t, job.k,
                   &job.arranged);
  for (size_t i = 0; i < weights.size(); ++i) {
    auto w = weights.get<xla::ffi::AnyBuffer>(i);
    auto y = results.get<xla::ffi::AnyBuffer>(i);
    if (!w.has_value()) return w.error();
    if (!y.has_value()) return y.error();
    job.weights.push_back({static_cast<const W*>(w->untyped_data()),
                           static_cast<float*>((*y)->untyped_data()),
                           w->dimensions()[0], 0, nullptr});
  }
  RunProduct(pool, &job);
  return xla::ffi::Error::Success();
}

// Of one x with weights of int8, each before the scales of its rows.
template <typename From>
xla::ffi::Error ProductInt8(xla::ffi::ThreadPool pool, xla::ffi::AnyBuffer x,
                            xla::ffi::RemainingArgs weights,
                            xla::ffi::RemainingRets results) {
  ProductJob<int8_t> job;
  job.t = x.dimensions()[0];
  job.k = x.dimensions()[1];
  job.x = Halved(static_cast<const From*>(x.untyped_data()), job.t, job.k,
                 &job.arranged, &job.sizes);
  for (size_t i = 0; i < results.size(); ++i) {
    auto w = weights.get<xla::ffi::AnyBuffer>(2 * i);
    auto scale = weights.get<xla::ffi::AnyBuffer>(2 * i + 1);
    auto y = results.get<xla::ffi::AnyBuffer>(i);
    if (!w.has_value()) return w.error();
    if (!scale.has_value()) return scale.error();
    if (!y.has_value()) return y.error();
    job.weights.push_back({static_cast<const int8_t*>(w->untyped_data()),
                           static_cast<float*>((*y)->untyped_data()),
                           w->dimensions()[0], 0,
                           static_cast<const float*>(scale->untyped_data())});
  }
  RunProduct(pool, &job);
  return xla::ffi::Error::Success();
}

}  // namespace specjax

#endif
