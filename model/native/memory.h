// Zeroed, aligned memory with one owner. Large pieces are mapped: the kernel gives their pages when they are first
// touched, so a cache takes what has been used of it; and they ask for huge pages, which spare a kernel that streams
// most misses of the TLB.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#define TRIOLET_CAN_MAP 1
#endif

namespace triolet {

template <class T>
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t count) { allocate(count); }
  Memory(Memory&& other) noexcept { take(other); }
  Memory& operator=(Memory&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~Memory() { release(); }

  // Lets the old content go.
  void allocate(size_t count) {
    release();
    if (!count) return;
#if defined(TRIOLET_CAN_MAP)
    if (count * sizeof(T) >= HUGE_PAGE) return map(count);
#endif
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    data_ = (T*)std::aligned_alloc(64, bytes);
    if (!data_) throw std::bad_alloc();
    std::memset((void*)data_, 0, bytes);
    count_ = count;
  }

  T* get() const { return data_; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }
  explicit operator bool() const { return data_ != nullptr; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  static constexpr size_t HUGE_PAGE = (size_t)2 << 20;

  void take(Memory& other) {
    data_ = other.data_, count_ = other.count_, mapped_ = other.mapped_, mapped_bytes_ = other.mapped_bytes_;
    other.data_ = nullptr, other.count_ = 0, other.mapped_ = nullptr;
  }

  void release() {
#if defined(TRIOLET_CAN_MAP)
    if (mapped_) munmap(mapped_, mapped_bytes_);
#endif
    if (!mapped_) std::free(data_);
    data_ = nullptr, count_ = 0, mapped_ = nullptr;
  }

#if defined(TRIOLET_CAN_MAP)
  void map(size_t count) {
    const size_t bytes = count * sizeof(T) + HUGE_PAGE;  // room to begin at a huge page
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    mapped_ = mapped, mapped_bytes_ = bytes, count_ = count;
    data_ = (T*)(((size_t)mapped + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
#if defined(MADV_HUGEPAGE)
    madvise(data_, count * sizeof(T), MADV_HUGEPAGE);
#endif
  }
#endif

  T* data_ = nullptr;
  size_t count_ = 0;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
};

}  // namespace triolet
