// The threads of a step. The caller drives phases; helpers only take chunks, and a phase ends when its chunks are done,
// not when every thread has arrived: a helper that the kernel has descheduled between chunks costs nothing. While they
// wait they yield; between steps helpers sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace triolet {

class Pool {
 public:
  static constexpr int MOST_THREADS = 256;

  // The process's only pool. Never destroyed: its helpers may outlive static objects.
  static Pool& shared();

  // Threads in all, the caller included. Not during a step.
  void resize(int threads);
  int size() const { return size_; }
  // That work in this step.
  int threads() const { return threads_; }

  // Between begin and end the first `threads` threads work. One caller at a time: begin waits for another's end.
  void begin(int threads);
  void end();

  // f(chunk, worker) for chunks [0, chunks); worker < size() names the thread. Within begin and end.
  template <class F>
  void run(int chunks, F&& f) {
    typedef typename std::remove_reference<F>::type Function;
    if (chunks <= 1 || threads_ <= 1) {
      for (int chunk = 0; chunk < chunks; chunk++) f(chunk, 0);
      return;
    }
    start([](void* context, int chunk, int worker) { (*(Function*)context)(chunk, worker); }, (void*)&f, chunks);
    finish(chunks);
  }

  // The same over [0, items), several neighbours to a chunk where there are many.
  template <class F>
  void run_items(int items, F&& f) {
    const int each = items > 64 ? 8 : items > 8 ? 2 : 1;
    run((items + each - 1) / each, [&](int chunk, int worker) {
      for (int i = chunk * each; i < (chunk + 1) * each && i < items; i++) f(i, worker);
    });
  }

 private:
  typedef void (*Work)(void* context, int chunk, int worker);
  struct Phase {
    std::atomic<Work> work{nullptr};
    std::atomic<void*> context{nullptr};
    std::atomic<int> chunks{0};
  };

  void start(Work work, void* context, int chunks);
  void finish(int chunks);
  bool take_and_run(int worker);
  void help(int worker);

  // phase number << 32 | next chunk. Phases alternate between two descriptions, so that a helper which read the old
  // number can only fail to take a chunk, never take one of a half-written description.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) Phase phases_[2];
  std::atomic<int> active_{0};  // threads of the step under way, 0 between steps
  std::atomic<int> asleep_{0};
  std::atomic<bool> stopping_{false};
  int threads_ = 1;
  int size_ = 1;
  std::mutex step_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> helpers_;
};

}  // namespace triolet
