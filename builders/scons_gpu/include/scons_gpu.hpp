// Kernels that are part of a program, found by module and name, loaded when they are first wanted. docs/loading.md has examples.
//
// Needs C++17 and <cuda.h>, and links with nothing but -ldl where the C library is older than 2.34. The driver is opened when a kernel is
// first wanted, as NVIDIA's own runtime does it, so that a program starts on a machine without one, and says so when it asks.
//
// Everything here may be called from any thread. Mistakes are scons_gpu::Error.

#ifndef SCONS_GPU_HPP
#define SCONS_GPU_HPP

#include <atomic>
#include <cstddef>
#include <mutex>

// Hidden: two shared libraries of one process may each have a program of one name.
namespace scons_gpu __attribute__((visibility("hidden"))) {

// What env.GpuEmbed writes. Only `library` and `kernel` change, each once, from null, and what is remembered of launches.

// A fatbin, or one object or PTX of a bundle.
struct Blob {
  const void* data;
  std::atomic<void*> library;  // CUlibrary
};

// Code for one architecture. It runs on compute capabilities (90 for 9.0) from `least` to `most` whose minor number's bit is set.
struct Part {
  const char* arch;
  int least, most;
  unsigned minors;
  const char* entry;  // the kernel's name in it
  Blob* blob;
  std::atomic<void*> kernel;         // CUkernel
  std::atomic<const void*> checked;  // the parameters that were last compared with the kernel's own
  unsigned allowed;                  // the most dynamic shared memory that was asked for, under the table's lock
};

// A module. In a bundle (no parts) each kernel has code of its own; else all have that of one part.
struct Module {
  const char* name;
  Part* parts;  // the best first
  std::size_t count;
};

struct Entry {
  Module* module;
  const char* symbol;
  const char* readable;  // relu(float*, int)
  const char* name;      // that without parameters
  Part* parts;           // the best first
  std::size_t count;
};

struct Table {
  const char* program;
  Module* modules;
  std::size_t module_count;
  Entry* kernels;
  std::size_t kernel_count;
  std::mutex lock;
};

}  // namespace scons_gpu

// Declares what env.GpuEmbed made of the program `name`: scons_gpu::Program net(scons_gpu_net);
#define SCONS_GPU_EMBEDDED(name) extern "C" __attribute__((visibility("hidden"))) ::scons_gpu::Table scons_gpu_##name

#ifndef SCONS_GPU_TABLES

#include <cuda.h>
#include <dlfcn.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

// A function of the driver in the version that cuda.h declares: SCONS_GPU_DRIVER(cuMemAlloc)(&memory, 4096);
#define SCONS_GPU_SPELLED_(function) #function
#define SCONS_GPU_QUOTED_(function) SCONS_GPU_SPELLED_(function)
#define SCONS_GPU_DRIVER(function) (::scons_gpu::driver_function<decltype(&::function)>(SCONS_GPU_QUOTED_(function)))

namespace scons_gpu __attribute__((visibility("hidden"))) {

class __attribute__((visibility("default"))) Error : public std::runtime_error {
 public:
  explicit Error(const std::string& text, CUresult said = CUDA_ERROR_UNKNOWN) : std::runtime_error(text), status(said) {}
  CUresult status;  // what the driver said, if it was the driver
};

// The driver's library. A failure is not kept: the next call tries again.
inline void* driver_library() {
  static void* const library = [] {
    void* const opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) throw Error(std::string("there is no CUDA driver on this machine: ") + dlerror());
    return opened;
  }();
  return library;
}

template <class Function>
Function driver_function(const char* name) {
  void* const found = dlsym(driver_library(), name);
  if (found == nullptr) throw Error(std::string("the CUDA driver of this machine is too old: it has no ") + name);
  return reinterpret_cast<Function>(found);
}

// Raises Error for what is no success. `what` is said first.
inline void check(CUresult status, const std::string& what) {
  if (status == CUDA_SUCCESS) return;
  const char* name = nullptr;
  SCONS_GPU_DRIVER(cuGetErrorName)(status, &name);
  throw Error(what + ": the driver says " + (name != nullptr ? name : std::to_string(static_cast<int>(status))), status);
}

// What is called often, looked up once, with the driver started.
struct Driver {
  decltype(&::cuCtxGetDevice) device = SCONS_GPU_DRIVER(cuCtxGetDevice);
  decltype(&::cuDeviceGetAttribute) attribute = SCONS_GPU_DRIVER(cuDeviceGetAttribute);
  decltype(&::cuLibraryLoadData) load = SCONS_GPU_DRIVER(cuLibraryLoadData);
  decltype(&::cuLibraryGetKernel) kernel = SCONS_GPU_DRIVER(cuLibraryGetKernel);
  decltype(&::cuLibraryGetGlobal) global = SCONS_GPU_DRIVER(cuLibraryGetGlobal);
  decltype(&::cuKernelGetFunction) function = SCONS_GPU_DRIVER(cuKernelGetFunction);
  decltype(&::cuKernelGetAttribute) limit = SCONS_GPU_DRIVER(cuKernelGetAttribute);
  decltype(&::cuKernelSetAttribute) allow = SCONS_GPU_DRIVER(cuKernelSetAttribute);
  decltype(&::cuLaunchKernel) launch = SCONS_GPU_DRIVER(cuLaunchKernel);
  // Of a kernel's parameter: CUresult (CUkernel, index, offset, size). Drivers before 12.4, and older headers, have none.
  CUresult (*parameter)(CUkernel, std::size_t, std::size_t*, std::size_t*) =
      reinterpret_cast<CUresult (*)(CUkernel, std::size_t, std::size_t*, std::size_t*)>(dlsym(driver_library(), "cuKernelGetParamInfo"));

  Driver() {
    const CUresult status = SCONS_GPU_DRIVER(cuInit)(0);
    if (status == CUDA_ERROR_NO_DEVICE) throw Error("there is a CUDA driver on this machine, and no device", status);
    check(status, "the CUDA driver does not start");
  }
};

inline const Driver& driver() {
  static const Driver started;
  return started;
}

// The device of the current context.
inline CUdevice current_device() {
  CUdevice device = 0;
  const CUresult status = driver().device(&device);
  if (status == CUDA_ERROR_INVALID_CONTEXT) {
    throw Error("no device is current on this thread: call scons_gpu::use_device, or the runtime's cudaSetDevice", status);
  }
  check(status, "no current device");
  return device;
}

// Makes a device current on this thread, by its primary context, which the runtime uses too.
inline CUdevice use_device(int number) {
  driver();
  CUdevice device = 0;
  CUcontext context = nullptr;
  const std::string what = "device " + std::to_string(number) + " cannot be used";
  check(SCONS_GPU_DRIVER(cuDeviceGet)(&device, number), what);
  check(SCONS_GPU_DRIVER(cuDevicePrimaryCtxRetain)(&context, device), what);
  check(SCONS_GPU_DRIVER(cuCtxSetCurrent)(context), what);
  return device;
}

// 90 for a device of compute capability 9.0.
inline int capability(CUdevice device) {
  int major = 0, minor = 0;
  check(driver().attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device), "compute capability");
  check(driver().attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device), "compute capability");
  return major * 10 + minor;
}

struct Variable {
  CUdeviceptr address;
  std::size_t bytes;
};

struct Shape {
  Shape(unsigned width, unsigned height = 1, unsigned depth = 1) : x(width), y(height), z(depth) {}  // 256 is a shape too
  unsigned x, y, z;
};

// {grid, block}, and where need be dynamic shared memory in bytes, and a stream.
struct Launch {
  Launch(Shape blocks, Shape threads, unsigned bytes = 0, CUstream on = nullptr)
      : grid(blocks), block(threads), shared(bytes), stream(on) {}
  Shape grid, block;
  unsigned shared;
  CUstream stream;
};

// The best of what runs on a device of this compute capability; null where nothing does. Parts come best first.
inline Part* fitting(Part* parts, std::size_t count, int number) {
  for (std::size_t i = 0; i < count; ++i) {
    if (parts[i].least <= number && number <= parts[i].most && (parts[i].minors >> number % 10 & 1) != 0) return parts + i;
  }
  return nullptr;
}

inline std::string listed(const Part* parts, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i != 0 ? ", " : "") + std::string(parts[i].arch);
  return text;
}

[[noreturn]] inline void refuse(const std::string& what, int number, const Part* parts, std::size_t count) {
  throw Error(what + ": nothing that was built runs on this device, which is " + std::to_string(number / 10) + "." +
              std::to_string(number % 10) + "; there is code for " + listed(parts, count));
}

// The library of a part, loaded once a process: it serves every context. `held` says that nobody else loads.
inline CUlibrary library(const Part& part, const std::lock_guard<std::mutex>& /*held*/, const std::string& what) {
  void* found = part.blob->library.load(std::memory_order_acquire);
  if (found == nullptr) {
    CUlibrary loaded = nullptr;
    check(driver().load(&loaded, part.blob->data, nullptr, nullptr, 0, nullptr, nullptr, 0), what + " does not load");
    part.blob->library.store(found = loaded, std::memory_order_release);
  }
  return static_cast<CUlibrary>(found);
}

inline Variable variable_of(Table& table, const Part& part, const char* symbol, const std::string& what) {
  Variable found{};
  const std::lock_guard<std::mutex> held(table.lock);
  check(driver().global(&found.address, &found.bytes, library(part, held, what), symbol), "variable " + std::string(symbol) + " of " + what);
  return found;
}

// A kernel of a program; cheap to copy. Which code it has is decided for the current device, at each call.
class Kernel {
 public:
  Kernel(Table& table, Entry& entry) : table_(&table), entry_(&entry) {}

  const char* module() const { return entry_->module->name; }
  const char* symbol() const { return entry_->symbol; }
  const char* readable() const { return entry_->readable; }

  // For the current context, to be used with any function of the driver.
  CUfunction function() const {
    CUfunction found = nullptr;
    check(driver().function(&found, handle(part(current_device()))), what() + " does not load");
    return found;
  }

  // Launches on the current device. The arguments must be the kernel's parameters, of their very sizes; where the driver tells these
  // (12.4 and newer), others are refused.
  template <class... Arguments>
  void launch(const Launch& how, Arguments... arguments) const {
    static_assert((std::is_trivially_copyable<Arguments>::value && ...), "a kernel's arguments are copied byte by byte");
    static constexpr std::size_t sizes[] = {sizeof(Arguments)..., 0};
    void* given[] = {const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
    const CUdevice device = current_device();
    Part& mine = part(device);
    const CUkernel kernel = handle(mine);
    if (mine.checked.load(std::memory_order_relaxed) != sizes) compare(mine, kernel, sizes, sizeof...(Arguments));
    if (how.shared != 0) allow(mine, kernel, device, how.shared);
    // cuLaunchKernel takes a CUkernel in a CUfunction's place (CUDA Driver API, Execution Control).
    check(driver().launch(reinterpret_cast<CUfunction>(kernel), how.grid.x, how.grid.y, how.grid.z, how.block.x, how.block.y, how.block.z,
                          how.shared, how.stream, given, nullptr),
          what() + " does not run");
  }

  // A variable that the kernel uses, in the current context. In a bundle each kernel has its own.
  Variable variable(const char* symbol) const { return variable_of(*table_, part(current_device()), symbol, what()); }

 private:
  std::string what() const { return "kernel " + std::string(readable()) + " of module " + module(); }

  // All kernels of an image come from one part of it, so that they share its variables.
  Part& part(CUdevice device) const {
    const Module& module = *entry_->module;
    const int number = capability(device);
    Part* const parts = module.parts != nullptr ? module.parts : entry_->parts;
    const std::size_t count = module.parts != nullptr ? module.count : entry_->count;
    const Part* const best = fitting(parts, count, number);
    if (best == nullptr) refuse(what(), number, parts, count);
    for (std::size_t i = 0; i < entry_->count; ++i) {
      if (std::strcmp(entry_->parts[i].arch, best->arch) == 0) return entry_->parts[i];
    }
    throw Error(what() + ": the device takes the module's code for " + best->arch + ", which lacks the kernel; it is in that for " +
                listed(entry_->parts, entry_->count));
  }

  CUkernel handle(Part& mine) const {
    void* found = mine.kernel.load(std::memory_order_acquire);
    if (found != nullptr) return static_cast<CUkernel>(found);
    const Driver& cuda = driver();
    const std::lock_guard<std::mutex> held(table_->lock);
    found = mine.kernel.load(std::memory_order_acquire);
    if (found == nullptr) {
      CUkernel kernel = nullptr;
      check(cuda.kernel(&kernel, library(mine, held, what()), mine.entry), what() + " does not load");
      mine.kernel.store(found = kernel, std::memory_order_release);
    }
    return static_cast<CUkernel>(found);
  }

  // More than 48 KiB of shared memory, static and dynamic together, must be asked for, kernel by kernel and device by device. What another
  // thread asked for is never taken back.
  void allow(Part& mine, CUkernel kernel, CUdevice device, unsigned bytes) const {
    const std::lock_guard<std::mutex> held(table_->lock);
    if (mine.allowed < bytes) mine.allowed = bytes;
    const int wanted = static_cast<int>(mine.allowed);
    int fixed = 0, limit = 0;
    check(driver().limit(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, device), what() + " does not run");
    check(driver().limit(&limit, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, device), what() + " does not run");
    if (limit != wanted && (limit < wanted || fixed + wanted > 48 * 1024)) {
      check(driver().allow(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, wanted, kernel, device), what() + " does not run");
    }
  }

  // A launch with other sizes would run, and read whatever lies there.
  void compare(Part& mine, CUkernel kernel, const std::size_t* sizes, std::size_t count) const {
    if (driver().parameter == nullptr) return;
    std::string wanted, given;
    bool same = true;
    for (std::size_t i = 0;; ++i) {
      std::size_t offset = 0, size = 0;
      const bool more = driver().parameter(kernel, i, &offset, &size) == CUDA_SUCCESS;
      if (more) wanted += " " + std::to_string(size);
      if (i < count) given += " " + std::to_string(sizes[i]);
      if (more != (i < count) || (more && size != sizes[i])) same = false;
      if (!more && i >= count) break;
    }
    if (!same) throw Error(what() + " has parameters of these bytes:" + wanted + "; it was given:" + given);
    mine.checked.store(sizes, std::memory_order_relaxed);
  }

  Table* table_;
  Entry* entry_;
};

// What env.GpuEmbed made of a program; cheap to copy. What is loaded stays loaded to the end of the process.
class Program {
 public:
  explicit Program(Table& table) : table_(&table) {}

  // All kernels, which needs no driver: entry.module->name, entry.symbol, entry.readable.
  const Entry* begin() const { return table_->kernels; }
  const Entry* end() const { return table_->kernels + table_->kernel_count; }

  // By its symbol, its readable name, or that without parameters where only one kernel of the module has it. Needs no driver.
  Kernel kernel(const char* module, const char* name) const {
    const Module& within = find(module);
    Entry* found = nullptr;
    std::string several;
    for (std::size_t i = 0; i < table_->kernel_count; ++i) {
      Entry& entry = table_->kernels[i];
      if (entry.module != &within) continue;
      if (std::strcmp(entry.symbol, name) == 0) return Kernel(*table_, entry);
      if (std::strcmp(entry.readable, name) != 0 && std::strcmp(entry.name, name) != 0) continue;
      if (found != nullptr) several += std::string(several.empty() ? found->readable : "") + ", " + entry.readable;
      found = &entry;
    }
    if (found == nullptr) throw Error("module " + std::string(module) + " has no kernel " + name);
    if (!several.empty()) throw Error(std::string(name) + " may be each of several kernels of module " + module + ": " + several);
    return Kernel(*table_, *found);
  }

  // A variable of an image, in the current context.
  Variable variable(const char* module, const char* symbol) const {
    Module& within = find(module);
    if (within.parts == nullptr) {
      throw Error("module " + std::string(module) + " is a bundle, in which each kernel has variables of its own: ask the kernel");
    }
    const int number = capability(current_device());
    const std::string what = "module " + std::string(module);
    const Part* const best = fitting(within.parts, within.count, number);
    if (best == nullptr) refuse(what, number, within.parts, within.count);
    return variable_of(*table_, *best, symbol, what);
  }

 private:
  Module& find(const char* name) const {
    for (std::size_t i = 0; i < table_->module_count; ++i) {
      if (std::strcmp(table_->modules[i].name, name) == 0) return table_->modules[i];
    }
    throw Error("program " + std::string(table_->program) + " has no module " + name + " with code");
  }

  Table* table_;
};

}  // namespace scons_gpu

#endif  // SCONS_GPU_TABLES
#endif  // SCONS_GPU_HPP
