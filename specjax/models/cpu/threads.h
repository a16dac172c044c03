// Work divided among threads of our own, which read ahead between two jobs.
//
// At dividing work XLA's pool is as good. But between the products of a pass one
// thread does norms and attention, and memory would rest: helpers fetch the next
// product's weights meanwhile, which took an eighth off a pass of one row.

#ifndef SPECJAX_THREADS_H_
#define SPECJAX_THREADS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <unordered_map>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace specjax {

constexpr int64_t kMostHelpers = 15;
// Before a helper sleeps: about a millisecond. To wake one takes 100 microseconds
// of whoever asks, on a virtual machine: as long as a small model's whole product.
constexpr int64_t kSpins = 50000;
// Before whoever waits for a helper's last part lets others run: the helper may
// be waiting for this very processor.
constexpr int64_t kWaits = 4000;
// Of what comes next, in pieces: more than there is ever time for.
constexpr int64_t kFetched = 2048 << 10;
constexpr int64_t kPiece = 128 << 10;
constexpr int64_t kJobsAhead = 2;

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Parts 0 .. parts - 1, each done once: from the front by who asks for the job,
// from the back by helpers.
struct Job {
  int64_t parts = 0;
  // What is read, from front to back, where it is worth to be fetched early; and
  // as much that is read together with it, where there are two.
  const char *data = nullptr, *beside = nullptr;
  int64_t bytes = 0;

  virtual ~Job() = default;
  virtual void Do(int64_t part) = 0;

  void Run() {
    for (int64_t part = 0; taken_.fetch_add(1) < parts; ++part) Do(part);
  }

  void Help() {
    while (taken_.fetch_add(1) < parts) Do(parts - 1 - back_.fetch_add(1));
  }

 private:
  std::atomic<int64_t> taken_{0}, back_{0};
};

// What is read for a job.
struct Range {
  const char *data = nullptr, *beside = nullptr;
  int64_t bytes = 0;
};

// While a pass does what only one thread can do, helpers fetch what they will
// read next: after these weights come those that came after them last time. To
// be wrong costs nothing but the reading.
class Foresight {
 public:
  void See(const Job& job) {
    if (job.data == nullptr) return;
    if (next_.size() > kMost) next_.clear();
    if (last_ != nullptr) next_[last_] = {job.data, job.beside, job.bytes};
    last_ = job.data;
  }

  // The jobs after the last one.
  void Ahead(std::array<Range, kJobsAhead>* out) const {
    const char* last = last_;
    for (Range& range : *out) {
      auto found = next_.find(last);
      range = found == next_.end() ? Range{} : found->second;
      last = range.data;
    }
  }

 private:
  static constexpr size_t kMost = 1 << 16;
  const char* last_ = nullptr;
  std::unordered_map<const char*, Range> next_;
};

class Helpers {
 public:
  // Never destroyed: threads may look at it until the process has gone.
  static Helpers& All(int64_t count) {
    static Helpers* all =
        new Helpers(std::clamp<int64_t>(count, 0, kMostHelpers));
    return *all;
  }

  // Runs a job on this thread and on whoever of the helpers comes.
  void Run(Job* job) {
    // One job at a time; whoever comes second does its own work.
    std::unique_lock<std::mutex> mine(turn_, std::try_to_lock);
    if (!mine.owns_lock()) return job->Run();
    foresight_.See(*job);
    std::array<Range, kJobsAhead> ahead;
    foresight_.Ahead(&ahead);
    for (int64_t i = 0; i < kJobsAhead; ++i) ahead_[i].store(ahead[i]);
    job_.store(job);
    calls_.fetch_add(1);
    if (asleep_.load() > 0) {
      std::lock_guard<std::mutex> lock(bed_);
      bell_.notify_all();
    }
    job->Run();
    job_.store(nullptr);
    // Whoever has seen the job has counted itself before.
    for (int64_t spins = 0; inside_.load() > 0; ++spins) {
      spins < kWaits ? Pause() : std::this_thread::yield();
    }
  }

 private:
  // A range that others read while it changes. Half an old one and half a new
  // one is no harm: to fetch what is not there does nothing.
  class Shared {
   public:
    void store(const Range& range) {
      bytes_.store(0);
      data_.store(range.data), beside_.store(range.beside);
      bytes_.store(range.bytes);
    }
    Range load() const { return {data_.load(), beside_.load(), bytes_.load()}; }

   private:
    std::atomic<const char*> data_{nullptr}, beside_{nullptr};
    std::atomic<int64_t> bytes_{0};
  };

  explicit Helpers(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      std::thread([this] { Serve(); }).detach();
    }
  }

  void Serve() {
    for (uint64_t seen = 0;;) {
      for (int64_t i = 0; i < kSpins && calls_.load() == seen; ++i) Pause();
      if (calls_.load() == seen) {
        std::unique_lock<std::mutex> lock(bed_);
        asleep_.fetch_add(1);
        bell_.wait(lock, [&] { return calls_.load() != seen; });
        asleep_.fetch_sub(1);
      }
      seen = calls_.load();
      inside_.fetch_add(1);
      if (Job* job = job_.load()) job->Help();
      inside_.fetch_sub(1);
      Fetch(seen);
    }
  }

  // Fetches the end of what comes next, and after it, until it does.
  void Fetch(uint64_t seen) const {
    int64_t left = kFetched;
    for (const Shared& shared : ahead_) {
      Range range = shared.load();
      int64_t many = range.beside ? 2 : 1;
      int64_t bytes = range.bytes;
      int64_t least = std::max<int64_t>(bytes - left / many, 0);
      left -= (bytes - least) * many;
      while (bytes > least) {
        int64_t from = std::max(bytes - kPiece, least);
        for (int64_t at = from; at < bytes; at += 64) {
          if (at % 1024 == 0 && calls_.load() != seen) return;
          __builtin_prefetch(range.data + at, 0, 2);
          if (range.beside) __builtin_prefetch(range.beside + at, 0, 2);
        }
        bytes = from;
      }
    }
  }

  std::atomic<Job*> job_{nullptr};
  std::atomic<uint64_t> calls_{0};
  std::atomic<int64_t> inside_{0}, asleep_{0};
  std::array<Shared, kJobsAhead> ahead_;
  std::mutex turn_, bed_;
  std::condition_variable bell_;
  Foresight foresight_;
};

// Runs a job on as many as `threads` threads.
inline void RunOn(int64_t threads, Job* job) {
  if (threads < 2 || job->parts < 2) return job->Run();
  Helpers::All(threads - 1).Run(job);
}

}  // namespace specjax

#endif
