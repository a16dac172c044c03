// Exponentials of keyed noise: jax.random.bits of a Threefry key, and what
// sampling.exponential makes of them.
//
// XLA keeps each of the twenty rounds in memory: a vocabulary of 49152 took .75
// ms.

#ifndef SPECJAX_NOISE_H_
#define SPECJAX_NOISE_H_

#include <algorithm>
#include <cstdint>

#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {

constexpr int64_t kNoise = 1 << 13;  // Numbers of a part.

inline Bits Rotated(Bits x, int by) { return (x << by) | (x >> (32 - by)); }

// Threefry-2x32 with 20 rounds (Salmon et al. 2011) of counters (0, count), its
// two words as one.
inline Bits Threefry(uint32_t key0, uint32_t key1, Bits count) {
  constexpr int kTurns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key0, key1, key0 ^ key1 ^ 0x1bd11bdau};
  Bits x = Bits{} + keys[0], y = count + keys[1];
  for (int round = 0; round < 5; ++round) {
    for (int turn : kTurns[round % 2]) {
      x += y;
      y = Rotated(y, turn) ^ x;
    }
    x += keys[(round + 1) % 3];
    y += keys[(round + 2) % 3] + (uint32_t)(round + 1);
  }
  return x ^ y;
}

// log(w) for w in [2^-24, 1), within 1 unit in the last place but close to 1.
inline Wide Log(Wide w) {
  // w = 2^n m with m from the root of a half to that of two.
  Whole bits = (Whole)w - 0x3f3504f3;
  Whole n = bits >> 23;
  Wide m = (Wide)((bits & 0x7fffff) + 0x3f3504f3);
  Wide z = m - 1.0f, y = Spread(7.0376836292e-2f);
  for (float c : {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                  1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f,
                  -2.4999993993e-1f, 3.3333331174e-1f}) {
    y = y * z + c;
  }
  Wide power = __builtin_convertvector(n, Wide);
  return z + (y * z * z * z - 0.5f * z * z + power * -2.12194440e-4f) +
         power * 0.693359375f;
}

// -log(1 - u) for the u in (0, 1) that 32 bits are.
inline Wide Exponential(Bits bits) {
  Wide u = (__builtin_convertvector(bits, Wide) + 0.5f) * 0x1p-32f;
  const Wide most = Spread(1 - 0x1p-24f);
  u = u < most ? u : most;
  // What 1 - u loses to rounding, the quotient makes up for (Kahan).
  Wide rest = 1.0f - u, lost = 1.0f - rest;
  Wide safe = lost > 0.0f ? lost : Spread(1.0f);
  return lost > 0.0f ? -Log(rest) * (u / safe) : u;
}

struct NoiseJob : Job {
  const uint32_t* keys;  // [B, 2]
  float* out;            // [B, n]
  int64_t n, each;       // Parts of a row.

  void Do(int64_t part) override {
    const uint32_t* key = keys + part / each * 2;
    int64_t at = part % each * kNoise, end = std::min(at + kNoise, n);
    float* to = out + part / each * n;
    Bits count = Bits{} + (uint32_t)at;
    for (int i = 0; i < kLanes; ++i) count[i] += i;
    for (; at < end; at += kLanes, count += kLanes) {
      Wide some = Exponential(Threefry(key[0], key[1], count));
      std::memcpy(to + at, &some,
                  std::min<int64_t>(kLanes, end - at) * sizeof(float));
    }
  }
};

// Of keys [B, 2]: [B, n].
inline xla::ffi::Error ExponentialNoise(xla::ffi::ThreadPool pool,
                                        xla::ffi::Buffer<xla::ffi::U32> keys,
                                        xla::ffi::ResultBuffer<xla::ffi::F32>
                                            out) {
  NoiseJob job;
  job.keys = keys.typed_data();
  job.out = out->typed_data();
  job.n = out->dimensions().back();
  job.each = (job.n + kNoise - 1) / kNoise;
  job.parts = keys.dimensions()[0] * job.each;
  RunOn(pool.num_threads(), &job);
  return xla::ffi::Error::Success();
}

}  // namespace specjax

#endif
