// Copies from global to shared memory that no register passes on the way.
//
// copy_async and its groups need sm_80, the bulk copy and its barrier sm_90. Whoever includes this asks for one of the
// two before, by COPY_ASYNC or COPY_BULK, and is told by the compiler where the GPU has none.
#pragma once

#if defined(__CUDA_ARCH__) && COPY_ASYNC && __CUDA_ARCH__ < 800
#error "cp.async needs sm_80 or newer"
#endif
#if defined(__CUDA_ARCH__) && COPY_BULK && __CUDA_ARCH__ < 900
#error "cp.async.bulk needs sm_90 or newer"
#endif

__device__ inline unsigned shared_address(const void* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }

#if COPY_ASYNC
// Four bytes; zero instead, and nothing is read, where `there` is false. `from` is a valid address all the same.
__device__ inline void copy_async(float* shared, const float* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(__cvta_generic_to_global(from)),
               "r"(there ? 4 : 0)
               : "memory");
}

// Ends a group of this thread's copies. A group may be empty, so that the count of groups does not depend on the data.
__device__ inline void commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most `Pending` of this thread's groups are under way. Other threads see the copies after a barrier.
template <int Pending>
__device__ void wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
#endif

#if COPY_BULK
// A barrier in shared memory that counts bytes. One thread sets it up, before a __syncthreads, and gives it its copy after.
__device__ inline void bulk_init(unsigned long long* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Both addresses and `bytes` are multiples of 16, `bytes` is above 0.
__device__ inline void bulk_copy(void* shared, const void* from, unsigned bytes, unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Every thread that reads the copy waits. The barrier is in its first phase: it serves one copy.
__device__ inline void bulk_wait(unsigned long long* barrier) {
  unsigned done;
  do {
    asm volatile(
        "{\n\t"
        ".reg .pred done;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], 0;\n\t"
        "selp.u32 %0, 1, 0, done;\n\t"
        "}"
        : "=r"(done)
        : "r"(shared_address(barrier))
        : "memory");
  } while (done == 0);
}
#endif
