#include "pool.h"

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace triolet {

namespace {

// Looks at the ticket before a thread starts to yield: some microseconds, longer than most gaps between phases.
constexpr int LOOKS_BEFORE_YIELD = 2000;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

Pool& Pool::shared() {
  static Pool* pool = new Pool;
  return *pool;
}

void Pool::resize(int threads) {
  std::lock_guard<std::mutex> step(step_);
  threads = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
  if (threads == size_) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
  stopping_ = false;
  size_ = threads;
  for (int worker = 1; worker < threads; worker++) helpers_.emplace_back([this, worker] { help(worker); });
}

void Pool::begin(int threads) {
  step_.lock();
  threads_ = threads < 1 ? 1 : threads > size_ ? size_ : threads;
  if (threads_ == 1) return;
  active_ = threads_;
  if (asleep_ > 0) {
    std::lock_guard<std::mutex> lock(mutex_);  // a helper about to sleep has looked at active_ before, or will now
    wake_.notify_all();
  }
}

void Pool::end() {
  active_ = 0;
  threads_ = 1;
  step_.unlock();
}

void Pool::start(Work work, void* context, int chunks) {
  const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  Phase& phase = phases_[number & 1];
  done_.store(0, std::memory_order_relaxed);
  phase.work.store(work, std::memory_order_relaxed);
  phase.context.store(context, std::memory_order_relaxed);
  phase.chunks.store(chunks, std::memory_order_relaxed);
  ticket_.store(number << 32, std::memory_order_release);
}

void Pool::finish(int chunks) {
  while (take_and_run(0)) {
  }
  for (int looks = 0; done_.load(std::memory_order_acquire) != chunks; looks++) {
    if (looks < LOOKS_BEFORE_YIELD) {
      pause();
    } else {
      sched_yield();
    }
  }
}

bool Pool::take_and_run(int worker) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    Phase& phase = phases_[ticket >> 32 & 1];
    const int chunk = (int)(uint32_t)ticket;
    if (chunk >= phase.chunks.load(std::memory_order_relaxed)) return false;
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      // The phase cannot end, nor its description change, before this chunk is done.
      phase.work.load(std::memory_order_relaxed)(phase.context.load(std::memory_order_relaxed), chunk, worker);
      done_.fetch_add(1, std::memory_order_release);
      return true;
    }
  }
}

void Pool::help(int worker) {
  int looks = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (active_.load(std::memory_order_relaxed) <= worker) {
      std::unique_lock<std::mutex> lock(mutex_);
      asleep_++;
      wake_.wait(lock, [&] { return active_ > worker || stopping_; });
      asleep_--;
      looks = 0;
    } else if (take_and_run(worker)) {
      looks = 0;
    } else if (++looks < LOOKS_BEFORE_YIELD) {
      pause();
    } else {
      sched_yield();
    }
  }
}

}  // namespace triolet
