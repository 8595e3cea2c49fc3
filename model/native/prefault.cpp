#include "prefault.h"

#include <algorithm>

#if defined(__linux__)
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23  // Linux 5.14; headers may be older than the kernel
#endif
#endif

namespace triolet {

namespace {

constexpr int64_t PIECE = (int64_t)2 << 20;  // a huge page: some milliseconds at most

// Takes a page's memory without changing what stands in it, so that others may write there meanwhile.
bool take(char* data, int64_t bytes) {
#if defined(__linux__)
  const int64_t page = sysconf(_SC_PAGESIZE);
  char* begin = (char*)((uintptr_t)data / page * page);
  return madvise(begin, (size_t)((data + bytes - begin + page - 1) / page * page), MADV_POPULATE_WRITE) == 0;
#else
  (void)data, (void)bytes;
  return false;
#endif
}

}  // namespace

Prefault::Prefault(const KVCache& cache, int64_t bytes) {
  const int64_t each = std::min(cache.tensor_bytes(), bytes / cache.num_tensors);
  thread_ = std::thread(&Prefault::run, this, cache.data.get(), cache.tensor_bytes(), cache.num_tensors, each);
}

Prefault::~Prefault() {
  stopping_ = true;
  wait();
}

void Prefault::wait() {
  if (thread_.joinable()) thread_.join();
}

void Prefault::run(char* data, int64_t tensor_bytes, int num_tensors, int64_t bytes_each) {
#if defined(__linux__)
  setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
#endif
  for (int64_t at = 0; at < bytes_each; at += PIECE) {
    const int64_t bytes = std::min(PIECE, bytes_each - at);
    for (int tensor = 0; tensor < num_tensors; tensor++) {
      if (stopping_ || !take(data + tensor * tensor_bytes + at, bytes)) return;
      taken_ += bytes;
    }
  }
}

}  // namespace triolet
