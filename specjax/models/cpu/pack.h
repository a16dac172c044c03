// Keys and values as a cache stores them.
//
// XLA works out for each number anew where it comes from and whether its value
// is finite: seven microseconds for eight tokens, twice in every layer.

#ifndef SPECJAX_PACK_H_
#define SPECJAX_PACK_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {

inline bool NotFinite(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return (bits & 0x7f800000u) == 0x7f800000u;
}
inline bool NotFinite(uint16_t x) { return (x & 0x7f80) == 0x7f80; }

// Of keys and values [B, T, K, H]: [B, K, T, H] both. Where a value is not
// finite it is kept as zeros, under a key of NaN.
template <typename W>
xla::ffi::Error Pack(xla::ffi::AnyBuffer keys, xla::ffi::AnyBuffer values,
                     xla::ffi::Result<xla::ffi::AnyBuffer> packed_keys,
                     xla::ffi::Result<xla::ffi::AnyBuffer> packed_values) {
  auto sizes = keys.dimensions();
  const int64_t b = sizes[0], t = sizes[1], k = sizes[2], h = sizes[3];
  auto from = static_cast<const W*>(keys.untyped_data());
  auto value = static_cast<const W*>(values.untyped_data());
  auto to = static_cast<W*>(packed_keys->untyped_data());
  auto to_value = static_cast<W*>(packed_values->untyped_data());
  W none;
  FromFloat(std::numeric_limits<float>::quiet_NaN(), &none);
  for (int64_t row = 0; row < b; ++row) {
    for (int64_t head = 0; head < k; ++head) {
      for (int64_t token = 0; token < t; ++token) {
        const int64_t at = ((row * t + token) * k + head) * h;
        bool odd = false;
        for (int64_t i = 0; i < h; ++i) odd |= NotFinite(value[at + i]);
        if (!odd) {
          std::memcpy(to, from + at, h * sizeof(W));
          std::memcpy(to_value, value + at, h * sizeof(W));
        } else {
          std::fill(to, to + h, none);
          std::fill(to_value, to_value + h, W{});
        }
        to += h, to_value += h;
      }
    }
  }
  return xla::ffi::Error::Success();
}

}  // namespace specjax

#endif
