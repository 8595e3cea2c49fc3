// Takes the pages of a cache before a step needs them, in a thread that runs when no other wants a core.
//
// A cache takes memory as it is written, so a step that is first to write somewhere waits for the kernel to find and
// clear pages; where the machine is a guest whose host has to find them too, that is 2 ms for each MiB, a seventh of the
// time of a prompt. What was taken once stays.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "kv_cache.h"

namespace triolet {

class Prefault {
 public:
  // The first `bytes` that will be used: of each tensor as many of its first blocks, which are given out first.
  Prefault(const KVCache& cache, int64_t bytes);
  // Waits for the piece in hand.
  ~Prefault();

  // Until all is done, or cannot be.
  void wait();
  int64_t bytes_taken() const { return taken_; }

 private:
  void run(char* data, int64_t tensor_bytes, int num_tensors, int64_t bytes_each);

  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> taken_{0};
  std::thread thread_;
};

}  // namespace triolet
