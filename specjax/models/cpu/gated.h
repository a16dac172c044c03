// act(x gate^T) * (x up^T): both products of a gated MLP and what it makes of
// them, in one pass over the weights.
//
// The thread that made a part's sums goes on with them: to hand them to another,
// as float32 and through memory that is busy with weights, took as long as a
// tenth of the products.

#ifndef SPECJAX_GATED_H_
#define SPECJAX_GATED_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "product.h"
#include "rows.h"
#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {

// Of rows of both weights that are made into one of y at a time: a multiple of
// every number of rows in a register block, and of lanes.
constexpr int64_t kBoth = 3 * kLanes;

enum Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

inline Wide Activate(Wide x, int32_t which) {
  // x times a logistic function, of x or of the polynomial in tanh's place.
  if (which == kSilu) return x * Logistic(x);
  Wide cubic = x * x * x * 0.044715f;
  return x * Logistic((x + cubic) * 1.5957691216057308f);
}

// Of weights W, with a result Y.
template <typename W, typename Y = W>
struct GatedJob : Job {
  int64_t t, k, n, chunk;
  int32_t activation;
  const typename Steps<W>::X* x;
  std::vector<typename Steps<W>::X> arranged;
  std::vector<float> sizes;  // See `ProductJob`.
  const W *gate, *up;  // [n, k]
  const float *gate_scale = nullptr, *up_scale = nullptr;  // [n], or none.
  Y* y;                // [t, n]

  void Do(int64_t part) override {
    int64_t row = part * chunk, end = std::min(row + chunk, n);
    for (; row < end; row += kBoth) Some(row, std::min(kBoth, end - row));
  }

 private:
  void Some(int64_t row, int64_t count) {
    static thread_local std::vector<float> sums;
    sums.resize(2 * t * kBoth);
    float scales[2][kBoth] = {};
    if (gate_scale) {
      std::copy_n(gate_scale + row, count, scales[0]);
      std::copy_n(up_scale + row, count, scales[1]);
    }
    float *gates = sums.data(), *ups = gates + t * kBoth;
    int64_t blocks = (t + kMostRows - 1) / kMostRows;
    for (int64_t block = 0; block < blocks; ++block) {
      int64_t from = block * t / blocks, to = (block + 1) * t / blocks;
      const auto* mine = x + from * RoundUp<W>(k);
      int64_t few = to - from, at = from * kBoth;
      Few(few, mine, gate + row * k, gates + at, k, kBoth, count);
      Few(few, mine, up + row * k, ups + at, k, kBoth, count);
    }
    for (int64_t i = 0; i < t; ++i) {
      Y out[kBoth];
      for (int64_t at = 0; at < kBoth; at += kLanes) {
        Wide left = Load(gates + i * kBoth + at);
        Wide right = Load(ups + i * kBoth + at);
        if (gate_scale) {
          left *= Load(scales[0] + at) * sizes[i];
          right *= Load(scales[1] + at) * sizes[i];
        }
        left = Rounded<Y>(Activate(Rounded<Y>(left), activation));
        Store(Rounded<Y>(left * Rounded<Y>(right)), out + at);
      }
      std::memcpy(y + i * n + row, out, count * sizeof(Y));
    }
  }
};

template <typename W, typename Y>
xla::ffi::Error RunGated(xla::ffi::ThreadPool pool, GatedJob<W, Y>* job) {
  int64_t row = job->k * (int64_t)sizeof(W), total = 2 * job->n * row;
  job->chunk = std::max<int64_t>(ChunkBytes(job->t) / (2 * row) / kBoth, 1);
  job->chunk *= kBoth;
  if (total <= kAloneBytes) job->chunk = job->n;
  job->parts = (job->n + job->chunk - 1) / job->chunk;
  job->data = reinterpret_cast<const char*>(job->gate);
  job->beside = reinterpret_cast<const char*>(job->up);
  job->bytes = job->n * row;
  RunOn(total <= kAloneBytes ? 1 : pool.num_threads(), job);
  return xla::ffi::Error::Success();
}

template <typename W>
xla::ffi::Error Gated(xla::ffi::ThreadPool pool, xla::ffi::AnyBuffer x,
                      xla::ffi::AnyBuffer gate, xla::ffi::AnyBuffer up,
                      xla::ffi::Result<xla::ffi::AnyBuffer> y,
                      int32_t activation) {
  GatedJob<W> job;
  job.t = x.dimensions()[0], job.k = x.dimensions()[1];
  job.n = gate.dimensions()[0];
  job.activation = activation;
  job.x = Arranged(static_cast<const W*>(x.untyped_data()), job.t, job.k,
                   &job.arranged);
  job.gate = static_cast<const W*>(gate.untyped_data());
  job.up = static_cast<const W*>(up.untyped_data());
  job.y = static_cast<W*>(y->untyped_data());
  return RunGated(pool, &job);
}

// Of x as it is, with weights of int8, each before the scales of its rows.
template <typename X>
xla::ffi::Error GatedInt8(xla::ffi::ThreadPool pool, xla::ffi::AnyBuffer x,
                          xla::ffi::AnyBuffer gate,
                          xla::ffi::AnyBuffer gate_scale,
                          xla::ffi::AnyBuffer up, xla::ffi::AnyBuffer up_scale,
                          xla::ffi::Result<xla::ffi::AnyBuffer> y,
                          int32_t activation) {
  GatedJob<int8_t, X> job;
  job.t = x.dimensions()[0], job.k = x.dimensions()[1];
  job.n = gate.dimensions()[0];
  job.activation = activation;
  job.x = Halved(static_cast<const X*>(x.untyped_data()), job.t, job.k,
                 &job.arranged, &job.sizes);
  job.gate = static_cast<const int8_t*>(gate.untyped_data());
  job.up = static_cast<const int8_t*>(up.untyped_data());
  job.gate_scale = static_cast<const float*>(gate_scale.untyped_data());
  job.up_scale = static_cast<const float*>(up_scale.untyped_data());
  job.y = static_cast<X*>(y->untyped_data());
  return RunGated(pool, &job);
}

}  // namespace specjax

#endif
