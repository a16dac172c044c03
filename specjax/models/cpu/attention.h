// Causal attention of a few queries over a cache, by absolute position.
//
// Keys and values are read once for each of their heads, in chunks at fixed
// positions whose softmax is merged at the end (Milakov and Gimelshein 2018). A
// query's result depends on itself and on what it sees alone, bit for bit.

#ifndef SPECJAX_ATTENTION_H_
#define SPECJAX_ATTENTION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "rows.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {

constexpr int64_t kPositions = 256;  // Of a chunk.
// Multiplications that are too few to wake another thread for.
constexpr int64_t kAloneWork = 1 << 15;

// T rows of weights [T, n] times values [count, h], into out [T, h].
template <int T, int C, typename S>
void MixColumns(const float* weights, int64_t n, const S* values, int64_t h,
                int64_t count, float* out) {
  Wide sums[T][C] = {};
  for (int64_t s = 0; s < count; ++s, values += h) {
    Wide left[C];
    for (int c = 0; c < C; ++c) {
      left[c] = LoadWide(values + c * kLanes);
      if (T > 1) Keep(&left[c]);
    }
    for (int t = 0; t < T; ++t) {
      Wide right = Spread(weights[t * n + s]);
      for (int c = 0; c < C; ++c) MultiplyAdd(left[c], right, &sums[t][c]);
    }
  }
  for (int t = 0; t < T; ++t) {
    std::memcpy(out + t * h, sums[t], sizeof(sums[t]));
  }
}

template <int T, typename S>
void Mix(const float* weights, int64_t n, const S* values, int64_t h,
         int64_t count, float* out) {
  constexpr int C = kRegisters == 32 ? (T <= 5 ? 4 : 2)
                                     : (T == 1 ? 8 : T == 2 ? 4 : 2);
  int64_t at = 0;
  for (; at + C * kLanes <= h; at += C * kLanes) {
    MixColumns<T, C>(weights, n, values + at, h, count, out + at);
  }
  for (; at + kLanes <= h; at += kLanes) {
    MixColumns<T, 1>(weights, n, values + at, h, count, out + at);
  }
  for (; at < h; ++at) {
    for (int t = 0; t < T; ++t) {
      float sum = 0;
      for (int64_t s = 0; s < count; ++s) {
        sum += weights[t * n + s] * ToFloat(values[s * h + at]);
      }
      out[t * h + at] = sum;
    }
  }
}

// The largest of scores [n], n whole Wides; NaN if one is.
inline float Top(const float* scores, int64_t n) {
  Wide top = Spread(-std::numeric_limits<float>::infinity()), bad = {};
  for (int64_t s = 0; s < n; s += kLanes) {
    Wide some = Load(scores + s);
    top = some > top ? some : top;
    bad = some != some ? some : bad;
  }
  float most = top[0];
  for (int i = 0; i < kLanes; ++i) {
    if (bad[i] != bad[i]) return bad[i];
    most = std::max(most, top[i]);
  }
  return most;
}

// What is added to scores by distance; all that lie further have the last.
struct Bias {
  const float* by_distance;
  int64_t count;  // 0: nothing is added.
};

// Scores [n] to weights, those that are neither in [low, at) nor the query's
// own to 0; returns their sum. The query is at `at`, and its own key lies in
// `slot`, there or behind it: what comes out is the same, bit for bit, unless
// the two are in chunks of their own. `top` becomes the largest score; NaN if
// one that counts is NaN.
inline float Weigh(float* scores, int64_t n, int64_t low, int64_t at,
                   int64_t slot, float scale, float softcap, Bias bias,
                   float* top) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const bool here = slot >= 0 && slot < n, moves = here && slot != at;
  // Its score is weighed where it would lie in a chain, if that is here.
  const int64_t place = moves && at >= 0 && at < n ? at : slot;
  float own = moves ? scores[slot] * scale : 0;
  int64_t high = slot == at ? at + 1 : at;
  low = std::clamp<int64_t>(low, 0, n), high = std::clamp(high, low, n);
  std::fill(scores, scores + low, kNone);
  std::fill(scores + high, scores + n, kNone);
  for (int64_t s = low; s < high; ++s) scores[s] *= scale;
  if (softcap > 0) {
    for (int64_t s = low; s < high; ++s) {
      scores[s] = softcap * std::tanh(scores[s] / softcap);
    }
  }
  if (bias.count > 0) {
    const int64_t furthest = bias.count - 1;
    const int64_t near = std::clamp(at - furthest, low, high);
    for (int64_t s = low; s < near; ++s) {
      scores[s] += bias.by_distance[furthest];
    }
    for (int64_t s = near; s < high; ++s) {
      scores[s] += bias.by_distance[at - s];
    }
  }
  if (moves) {
    if (softcap > 0) own = softcap * std::tanh(own / softcap);
    if (bias.count > 0) own += bias.by_distance[0];
    scores[place] = own;
  }
  *top = Top(scores, n);
  if (*top == kNone) {
    std::fill(scores, scores + n, 0.0f);
    return 0;
  }
  Wide sum = {}, most = Spread(*top);
  for (int64_t s = 0; s < n; s += kLanes) {
    Wide weight = Exp(Load(scores + s) - most);
    std::memcpy(scores + s, &weight, sizeof(weight));
    sum += weight;
  }
  if (moves) std::swap(scores[place], scores[slot]);
  return Sum(sum);
}

// Sizes by the glossary: B rows, T tokens, N heads, K key/value heads, H, S.
template <typename W>
struct AttentionJob : Job {
  const W *q, *k, *v;  // [B, T, N, H]; [B, K, S, H] of one layer, twice.
  const int32_t *positions, *slots;  // [B, T] both
  const float* bias;         // [N, R]
  W* out;                    // [B, T, N, H]
  int64_t b, t, n, kv, h, s, r, window;
  float scale, softcap;

  struct Part {
    int64_t row, head, start, count;
    int64_t place;  // Of its first query in `partial`; -1: it is the only one.
    int64_t begin, end;  // Of the head's queries: one register block.
  };
  struct Group {
    int64_t row, head, place, chunks;
  };
  std::vector<Part> todo;
  std::vector<Group> groups;
  // Of every query of a part: the top score, the sum, and H of values.
  std::vector<float> partial;

  int64_t queries() const { return n / kv * t; }

  void Plan() {
    int64_t place = 0;
    for (int64_t row = 0; row < b; ++row) {
      const int32_t* at = positions + row * t;
      const int32_t* own = slots + row * t;
      int64_t last = std::max(*std::max_element(at, at + t),
                              *std::max_element(own, own + t));
      int64_t first = window ? *std::min_element(at, at + t) - window + 1 : 0;
      last = std::clamp<int64_t>(last, 0, s - 1);
      first = std::clamp<int64_t>(first, 0, last) / kLanes * kLanes;
      int64_t from = first / kPositions, to = last / kPositions + 1;
      for (int64_t head = 0; head < kv; ++head) {
        if (to - from > 1) groups.push_back({row, head, place, to - from});
        for (int64_t chunk = from; chunk < to; ++chunk) {
          int64_t start = std::max(chunk * kPositions, first);
          int64_t end = std::min((chunk + 1) * kPositions, last + 1);
          bool only = to - from == 1;
          int64_t at = only ? -1 : place, many = queries();
          int64_t blocks = (many + kMostRows - 1) / kMostRows;
          for (int64_t i = 0; i < blocks; ++i) {
            todo.push_back({row, head, start, end - start, at,
                            i * many / blocks, (i + 1) * many / blocks});
          }
          if (!only) place += many;
        }
      }
    }
    partial.resize(place * (h + 2));
    parts = todo.size();
  }

  // Query `index` of a part: its head within the group and its token.
  const W* Query(const Part& part, int64_t index) const {
    int64_t head = part.head * (n / kv) + index / t;
    return q + ((part.row * t + index % t) * n + head) * h;
  }

  void Finish(int64_t row, int64_t head, int64_t index, const float* values,
              float sum) {
    int64_t mine = head * (n / kv) + index / t;
    W* to = out + ((row * t + index % t) * n + mine) * h;
    for (int64_t i = 0; i < h; ++i) FromFloat(values[i] / sum, to + i);
  }

  void Do(int64_t index) override {
    const Part& part = todo[index];
    const int64_t wide = RoundUp<W>(h), begin = part.begin;
    const int64_t few = part.end - begin;
    const int64_t padded = (part.count + kLanes - 1) / kLanes * kLanes;
    static thread_local std::vector<typename Steps<W>::X> x;
    static thread_local std::vector<float> scores, mixed;
    x.resize(kMostRows * wide);
    scores.resize(kMostRows * padded);
    mixed.resize(kMostRows * h);
    int64_t from = (part.row * kv + part.head) * s + part.start;
    // Values come while scores are made.
    const char* later = reinterpret_cast<const char*>(v + from * h);
    const int64_t bytes = part.count * h * (int64_t)sizeof(W);
    for (int64_t i = begin ? bytes : 0; i < bytes; i += kLine) Fetch(later + i);
    for (int64_t i = 0; i < few; ++i) {
      Arrange(Query(part, begin + i), 1, h, x.data() + i * wide);
    }
    Few(few, x.data(), k + from * h, scores.data(), h, padded, part.count);
    float tops[kMostRows], sums[kMostRows];
    for (int64_t i = 0; i < few; ++i) {
      int64_t token = part.row * t + (begin + i) % t;
      int64_t at = positions[token];
      int64_t low = window ? at - window + 1 : 0;
      int64_t mine = part.head * (n / kv) + (begin + i) / t;
      sums[i] = Weigh(scores.data() + i * padded, padded, low - part.start,
                      at - part.start, slots[token] - part.start, scale,
                      softcap, {bias + mine * r, r}, tops + i);
    }
    WithRows(few, [&](auto rows) {
      Mix<decltype(rows)::value>(scores.data(), padded, v + from * h, h,
                                 part.count, mixed.data());
    });
    for (int64_t i = 0; i < few; ++i) {
      const float* values = mixed.data() + i * h;
      if (part.place < 0) {
        Finish(part.row, part.head, begin + i, values, sums[i]);
        continue;
      }
      float* to = partial.data() + (part.place + begin + i) * (h + 2);
      to[0] = tops[i], to[1] = sums[i];
      std::copy(values, values + h, to + 2);
    }
  }

  // The chunks of every query as one.
  void Merge() {
    std::vector<float> mixed(h);
    for (const Group& group : groups) {
      for (int64_t i = 0; i < queries(); ++i) {
        auto chunk = [&](int64_t c) {
          int64_t place = group.place + c * queries() + i;
          return partial.data() + place * (h + 2);
        };
        float top = chunk(0)[0];
        for (int64_t c = 1; c < group.chunks; ++c) {
          float other = chunk(c)[0];
          top = other > top || other != other ? other : top;
        }
        float sum = 0;
        std::fill(mixed.begin(), mixed.end(), 0.0f);
        for (int64_t c = 0; c < group.chunks; ++c) {
          const float* from = chunk(c);
          if (from[1] == 0) continue;  // It sees nothing there.
          float share = Exp(Spread(from[0] - top))[0];
          sum += from[1] * share;
          for (int64_t j = 0; j < h; ++j) mixed[j] += from[2 + j] * share;
        }
        Finish(group.row, group.head, i, mixed.data(), sum);
      }
    }
  }
};

// q [B, T, N, H]; keys, values [L, B, K, S, H]; layer, window [] (0: sees all);
// positions, slots [B, T]; bias float32 [N, R] by distance (R = 0: none).
// bfloat16 passes as its bits.
template <typename W>
xla::ffi::Error Attention(xla::ffi::ThreadPool pool, xla::ffi::AnyBuffer q,
                          xla::ffi::AnyBuffer keys, xla::ffi::AnyBuffer values,
                          xla::ffi::AnyBuffer layer,
                          xla::ffi::AnyBuffer positions,
                          xla::ffi::AnyBuffer slots,
                          xla::ffi::AnyBuffer window, xla::ffi::AnyBuffer bias,
                          xla::ffi::Result<xla::ffi::AnyBuffer> out,
                          float scale, float softcap) {
  AttentionJob<W> plan, *job = &plan;
  auto sizes = q.dimensions(), stack = keys.dimensions();
  job->b = sizes[0], job->t = sizes[1], job->n = sizes[2], job->h = sizes[3];
  job->kv = stack[2], job->s = stack[3];
  int64_t at = *static_cast<const int32_t*>(layer.untyped_data());
  at = std::clamp<int64_t>(at, 0, stack[0] - 1);
  int64_t skip = at * job->b * job->kv * job->s * job->h;
  job->q = static_cast<const W*>(q.untyped_data());
  job->k = static_cast<const W*>(keys.untyped_data()) + skip;
  job->v = static_cast<const W*>(values.untyped_data()) + skip;
  job->positions = static_cast<const int32_t*>(positions.untyped_data());
  job->slots = static_cast<const int32_t*>(slots.untyped_data());
  job->window = *static_cast<const int32_t*>(window.untyped_data());
  job->bias = static_cast<const float*>(bias.untyped_data());
  job->r = bias.dimensions()[1];
  job->out = static_cast<W*>(out->untyped_data());
  job->scale = scale, job->softcap = softcap;
  job->Plan();
  int64_t work = 0;
  for (const auto& part : job->todo) {
    work += part.count * (part.end - part.begin);
  }
  if (work * job->h <= kAloneWork) {
    job->Run();
  } else {
    RunOn(pool.num_threads(), job);
  }
  job->Merge();
  return xla::ffi::Error::Success();
}

}  // namespace specjax

#endif
