// Of each row of x the largest number and where it first is, in one reading.
//
// XLA reads a row once for the largest, again for where that is, and a third
// time, writing it, to see a NaN, which a largest number may lose.

#ifndef SPECJAX_LARGEST_H_
#define SPECJAX_LARGEST_H_

#include <cmath>
#include <cstdint>

#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {

// A row of n > 0 numbers. Where there is a NaN, `top` is one and `place` some
// place.
inline void Largest(const float* x, int64_t n, int32_t* place, float* top) {
  float best = x[0];
  int32_t where = 0;
  bool odd = best != best;
  int64_t at = 1;
  if (n >= kLanes) {
    // Each lane for itself: its largest so far, and its first place.
    Wide tops = Load(x);
    Whole here, places, odds = (Whole)(tops != tops);
    for (int i = 0; i < kLanes; ++i) here[i] = i;
    places = here;
    for (at = kLanes; at + kLanes <= n; at += kLanes) {
      here += kLanes;
      Wide v = Load(x + at);
      Whole more = (Whole)(v > tops);
      tops = (Wide)((more & (Whole)v) | (~more & (Whole)tops));
      places = (more & here) | (~more & places);
      odds |= (Whole)(v != v);
    }
    for (int i = 0; i < kLanes; ++i) {
      odd |= odds[i] != 0;
      if (tops[i] > best || (tops[i] == best && places[i] < where)) {
        best = tops[i], where = places[i];
      }
    }
  }
  for (; at < n; ++at) {
    odd |= x[at] != x[at];
    if (x[at] > best) best = x[at], where = at;
  }
  *place = where;
  *top = odd ? std::nanf("") : best;
}

struct LargestJob : Job {
  const float* x;
  int64_t n;
  int32_t* places;
  float* tops;

  void Do(int64_t part) override {
    Largest(x + part * n, n, places + part, tops + part);
  }
};

// Of x [..., V].
inline xla::ffi::Error LargestOfRows(xla::ffi::ThreadPool pool,
                                     xla::ffi::Buffer<xla::ffi::F32> x,
                                     xla::ffi::ResultBuffer<xla::ffi::S32> places,
                                     xla::ffi::ResultBuffer<xla::ffi::F32> tops) {
  LargestJob job;
  job.x = x.typed_data();
  job.n = x.dimensions().back();
  job.parts = places->element_count();
  job.places = places->typed_data();
  job.tops = tops->typed_data();
  RunOn(pool.num_threads(), &job);
  return xla::ffi::Error::Success();
}

}  // namespace specjax

#endif
