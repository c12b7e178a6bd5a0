// Host half of a CUDA kernel: finds the driver at run time, loads the cubin embedded in this object, launches on the
// caller's stream.
//
// One rendered `.cu` file holds both halves. nvcc compiles it to a cubin; g++ then compiles the same file, with the cubin
// beside it, to the shared object that exports the entry:
//
//   struct Params { ... };                     // plain data, shared by both halves
//   #ifdef __CUDACC__
//   extern "C" __global__ void scale_kernel(const __grid_constant__ Params params) { ... }
//   #else
//   #include "cuda/launch.h"
//   static moegen::Kernel scale_kernel("scale_kernel", /*shared_bytes=*/0);
//   static void scale(tvm::ffi::TensorView x) { scale_kernel.launch({.grid_x = 132, .threads = 256}, x.device(), Params{...}); }
//   TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale)
//   MOEGEN_EXPORT_PREPARE()
//   #endif
//
// libcuda is no link-time dependency: objects are built and loaded on machines without a GPU, and only a launch needs one.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <atomic>
#include <cstdint>
#include <mutex>

// `.incbin` finds kernel.cubin in a folder given to the assembler, so no path enters the object.
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".hidden moegen_cubin\n"
    ".globl moegen_cubin\n"
    "moegen_cubin:\n"
    ".incbin \"kernel.cubin\"\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char moegen_cubin[];

namespace moegen {

/// The driver functions that a launch needs, resolved once, on first use.
struct Driver {
  decltype(&cuInit) init;
  decltype(&cuGetErrorString) error_string;
  decltype(&cuDeviceGet) device_get;
  decltype(&cuDeviceGetAttribute) device_attribute;
  decltype(&cuDevicePrimaryCtxRetain) context_retain;
  decltype(&cuCtxGetCurrent) context_current;
  decltype(&cuCtxSetCurrent) context_set;
  decltype(&cuLibraryLoadData) library_load;
  decltype(&cuLibraryGetKernel) library_kernel;
  decltype(&cuKernelSetAttribute) kernel_attribute;
  decltype(&cuLaunchKernelEx) launch;

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  /// Throws RuntimeError with the driver's own text and what was being done.
  void check(CUresult result, const char* doing) const {
    if (result != CUDA_SUCCESS) {
      const char* text = nullptr;
      error_string(result, &text);
      TVM_FFI_THROW(RuntimeError) << doing << ": CUDA error " << int(result) << " (" << (text ? text : "unknown") << ")";
    }
  }

 private:
  Driver() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      TVM_FFI_THROW(RuntimeError) << "no CUDA driver on this machine (" << dlerror() << "); this kernel needs a GPU";
    }
    resolve(library, "cuInit", init);
    resolve(library, "cuGetErrorString", error_string);
    resolve(library, "cuDeviceGet", device_get);
    resolve(library, "cuDeviceGetAttribute", device_attribute);
    resolve(library, "cuDevicePrimaryCtxRetain", context_retain);
    resolve(library, "cuCtxGetCurrent", context_current);
    resolve(library, "cuCtxSetCurrent", context_set);
    resolve(library, "cuLibraryLoadData", library_load);
    resolve(library, "cuLibraryGetKernel", library_kernel);
    resolve(library, "cuKernelSetAttribute", kernel_attribute);
    resolve(library, "cuLaunchKernelEx", launch);
    check(init(0), "cuInit");
  }

  template <class Function>
  static void resolve(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) {
      TVM_FFI_THROW(RuntimeError) << "the CUDA driver has no " << name << "; a driver for CUDA 12.8 or newer is needed";
    }
  }
};

/// Makes a device's primary context current for a scope: a thread may never have touched CUDA, or be on another device.
class ContextScope {
 public:
  explicit ContextScope(int device) {
    const Driver& driver = Driver::get();
    CUcontext wanted = primary(device);
    driver.check(driver.context_current(&previous_), "cuCtxGetCurrent");
    if (previous_ != wanted) {
      driver.check(driver.context_set(wanted), "cuCtxSetCurrent");
      changed_ = true;
    }
  }
  ~ContextScope() {
    if (changed_ && previous_ != nullptr) {
      Driver::get().context_set(previous_);
    }
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  static constexpr int kMaxDevices = 64;

 private:
  static CUcontext primary(int device) {
    static std::atomic<CUcontext> contexts[kMaxDevices];
    if (device < 0 || device >= kMaxDevices) {
      TVM_FFI_THROW(ValueError) << "device " << device << " is outside [0, " << kMaxDevices << ")";
    }
    CUcontext context = contexts[device].load(std::memory_order_acquire);
    if (context == nullptr) {
      const Driver& driver = Driver::get();
      CUdevice handle = 0;
      driver.check(driver.device_get(&handle, device), "cuDeviceGet");
      driver.check(driver.context_retain(&context, handle), "cuDevicePrimaryCtxRetain");
      contexts[device].store(context, std::memory_order_release);
    }
    return context;
  }

  CUcontext previous_ = nullptr;
  bool changed_ = false;
};

/// Streaming multiprocessors of a device: how many persistent blocks a launch may use.
inline int multiprocessors(int device) {
  static std::atomic<int> counts[ContextScope::kMaxDevices];
  if (device < 0 || device >= ContextScope::kMaxDevices) {
    TVM_FFI_THROW(ValueError) << "device " << device << " is outside [0, " << ContextScope::kMaxDevices << ")";
  }
  int count = counts[device].load(std::memory_order_relaxed);
  if (count == 0) {
    const Driver& driver = Driver::get();
    CUdevice handle = 0;
    driver.check(driver.device_get(&handle, device), "cuDeviceGet");
    driver.check(driver.device_attribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle), "cuDeviceGetAttribute");
    counts[device].store(count, std::memory_order_relaxed);
  }
  return count;
}

/// Geometry of one launch; `cluster` CTAs along x form a cluster, `dependent` starts before its predecessor has ended.
struct Grid {
  unsigned grid_x = 1;
  unsigned grid_y = 1;
  unsigned grid_z = 1;
  unsigned threads = 1;
  unsigned cluster = 1;
  bool dependent = false;
};

/// A kernel of the embedded cubin. Loaded by `prepare` or by its first launch, for any device.
class Kernel {
 public:
  Kernel(const char* name, int shared_bytes) : name_(name), shared_bytes_(shared_bytes), next_(first()) { first() = this; }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Launches on the caller's current stream of `device`; `params` are the kernel's parameters, exact types.
  template <class... Params>
  void launch(const Grid& grid, DLDevice device, Params... params) {
    prepare(device.device_id);
    const ContextScope context(device.device_id);
    void* arguments[] = {&params...};
    CUlaunchAttribute attributes[2];
    CUlaunchConfig config = {};
    config.gridDimX = grid.grid_x;
    config.gridDimY = grid.grid_y;
    config.gridDimZ = grid.grid_z;
    config.blockDimX = grid.threads;
    config.blockDimY = 1;
    config.blockDimZ = 1;
    config.sharedMemBytes = unsigned(shared_bytes_);
    config.hStream = static_cast<CUstream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
    config.attrs = attributes;
    if (grid.cluster > 1) {
      CUlaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attribute.value.clusterDim = {grid.cluster, 1, 1};
    }
    if (grid.dependent) {
      CUlaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attribute.value.programmaticStreamSerializationAllowed = 1;
    }
    const Driver& driver = Driver::get();
    driver.check(driver.launch(&config, reinterpret_cast<CUfunction>(handle_), arguments, nullptr), name_);
  }

  /// Loads the kernel and sets its shared-memory limit on `device`. Idempotent; safe from several threads.
  void prepare(int device) {
    if (device >= 0 && device < ContextScope::kMaxDevices && (ready_.load(std::memory_order_acquire) >> device) & 1u) {
      return;
    }
    const ContextScope context(device);
    const std::lock_guard<std::mutex> guard(mutex());
    const Driver& driver = Driver::get();
    if (handle_ == nullptr) {
      driver.check(driver.library_kernel(&handle_, library(), name_), name_);
    }
    CUdevice target = 0;
    driver.check(driver.device_get(&target, device), "cuDeviceGet");
    driver.check(driver.kernel_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes_, handle_, target),
                 "cuKernelSetAttribute");
    ready_.fetch_or(std::uint64_t{1} << device, std::memory_order_release);
  }

  /// Prepares every kernel of this object.
  static void prepare_all(int64_t device) {
    for (Kernel* kernel = first(); kernel != nullptr; kernel = kernel->next_) {
      kernel->prepare(int(device));
    }
  }

 private:
  static Kernel*& first() {
    static Kernel* head = nullptr;
    return head;
  }
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static CUlibrary library() {  // called with the mutex held
    static CUlibrary loaded = nullptr;
    if (loaded == nullptr) {
      const Driver& driver = Driver::get();
      driver.check(driver.library_load(&loaded, moegen_cubin, nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
    }
    return loaded;
  }

  const char* name_;
  int shared_bytes_;
  Kernel* next_;
  CUkernel handle_ = nullptr;
  std::atomic<std::uint64_t> ready_{0};
};

}  // namespace moegen

/// Exports `prepare(device)`: whoever loads the object calls it, so that nothing is loaded inside a graph capture.
#define MOEGEN_EXPORT_PREPARE() TVM_FFI_DLL_EXPORT_TYPED_FUNC(prepare, moegen::Kernel::prepare_all)
