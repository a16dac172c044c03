// x / rms(x) * weight, of a few rows.
//
// A row's result depends on it alone, bit for bit: XLA sums in another order
// from eight rows on. And it is one call where XLA has three.

#ifndef SPECJAX_NORM_H_
#define SPECJAX_NORM_H_

#include <cmath>
#include <cstdint>

#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {

// A row x [d] of W; `plus_one`: weights are offsets from one, which multiply
// before anything is rounded.
template <typename W>
void NormRow(const W* x, const W* weight, int64_t d, float eps, bool plus_one,
             W* out) {
  Wide sums = {};
  int64_t at = 0;
  for (; at + kLanes <= d; at += kLanes) {
    Wide v = LoadWide(x + at);
    MultiplyAdd(v, v, &sums);
  }
  float sum = Sum(sums);
  for (int64_t i = at; i < d; ++i) sum += ToFloat(x[i]) * ToFloat(x[i]);
  const float scale = 1 / std::sqrt(sum / d + eps);
  for (int64_t i = 0; i < at; i += kLanes) {
    Wide v = LoadWide(x + i) * scale, w = LoadWide(weight + i);
    v = plus_one ? v * (w + 1.0f) : Rounded<W>(v) * w;
    Store(Rounded<W>(v), out + i);
  }
  for (; at < d; ++at) {
    float v = ToFloat(x[at]) * scale, w = ToFloat(weight[at]);
    W once;
    FromFloat(v, &once);
    FromFloat(plus_one ? v * (w + 1) : ToFloat(once) * w, out + at);
  }
}

// Of x [..., D] and weight [D].
template <typename W>
xla::ffi::Error Norm(xla::ffi::AnyBuffer x, xla::ffi::AnyBuffer weight,
                     xla::ffi::Result<xla::ffi::AnyBuffer> out, float eps,
                     int32_t plus_one) {
  const int64_t d = weight.dimensions()[0];
  auto from = static_cast<const W*>(x.untyped_data());
  auto to = static_cast<W*>(out->untyped_data());
  const int64_t rows = static_cast<int64_t>(x.element_count()) / d;
  for (int64_t row = 0; row < rows; ++row) {
    NormRow(from + row * d, static_cast<const W*>(weight.untyped_data()), d,
            eps, plus_one != 0, to + row * d);
  }
  return xla::ffi::Error::Success();
}

}  // namespace specjax

#endif
