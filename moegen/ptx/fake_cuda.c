/* Stands in for the CUDA driver and for CuTeDSL's runtime on machines without a GPU: kernel launches call back into
 * Python, everything else succeeds without doing anything. A kernel handle is the kernel's name.
 *
 * One library serves two kinds of host code: objects that look up `cu*` in libcuda.so.1 (this library carries that
 * soname, so a loader that already holds it uses it), and CuTeDSL objects, which import `_cuda*` and `cuda_dialect_*`. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, LAUNCH_FAILURE = 719 };
enum { ATTRIBUTE_COOPERATIVE = 2, ATTRIBUTE_CLUSTER = 4, ATTRIBUTE_PROGRAMMATIC = 6 };

/* shape: grid 3, block 3, dynamic shared bytes, cluster 3, programmatic, cooperative. */
typedef int (*launch_callback)(const char* kernel, const uint64_t shape[12], void** arguments);
typedef int (*attribute_callback)(int attribute, int* value);

static launch_callback on_launch;
static attribute_callback on_attribute;

void moegen_ptx_connect(launch_callback launch, attribute_callback attribute) {
  on_launch = launch;
  on_attribute = attribute;
}

/* Common head of cudaLaunchConfig_t and CUlaunchConfig; only the width of the shared-memory field differs. */
struct config {
  uint32_t grid[3];
  uint32_t block[3];
  uint64_t shared;
  void* stream;
  const uint8_t* attributes;
  uint32_t count;
};

static int launch(const struct config* config, uint64_t shared, const void* kernel, void** arguments) {
  uint64_t shape[12] = {0};
  if (on_launch == NULL || kernel == NULL) {
    return INVALID_VALUE;
  }
  for (int k = 0; k < 3; ++k) {
    shape[k] = config->grid[k];
    shape[3 + k] = config->block[k];
    shape[7 + k] = 1;
  }
  shape[6] = shared;
  for (uint32_t k = 0; k < config->count; ++k) {
    const uint8_t* attribute = config->attributes + 72 * k;
    uint32_t id, value[3];
    memcpy(&id, attribute, sizeof id);
    memcpy(value, attribute + 8, sizeof value);
    if (id == ATTRIBUTE_CLUSTER) {
      for (int j = 0; j < 3; ++j) {
        shape[7 + j] = value[j];
      }
    } else if (id == ATTRIBUTE_PROGRAMMATIC) {
      shape[10] = value[0];
    } else if (id == ATTRIBUTE_COOPERATIVE) {
      shape[11] = value[0];
    }
  }
  return on_launch((const char*)kernel, shape, arguments) ? LAUNCH_FAILURE : SUCCESS;
}

static int attribute(int id, int* value) {
  return on_attribute != NULL && on_attribute(id, value) == 0 ? SUCCESS : INVALID_VALUE;
}

/* Names outlive the libraries that they came from. */
static char names[1 << 20];
static size_t used;

static const char* keep(const char* name) {
  size_t length = strlen(name) + 1;
  for (size_t at = 0; at < used; at += strlen(names + at) + 1) {
    if (strcmp(names + at, name) == 0) {
      return names + at;
    }
  }
  if (used + length > sizeof names) {
    return NULL;
  }
  memcpy(names + used, name, length);
  used += length;
  return names + used - length;
}

/* -- driver ------------------------------------------------------------------------------------------------------ */

int cuInit(unsigned flags) { return (void)flags, SUCCESS; }
int cuGetErrorString(int error, const char** text) {
  *text = error == LAUNCH_FAILURE ? "the interpreter refused or failed the launch" : "invalid value";
  return SUCCESS;
}
int cuGetErrorName(int error, const char** text) { return cuGetErrorString(error, text); }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, SUCCESS; }
int cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
int cuDeviceGetAttribute(int* value, int id, int device) { return (void)device, attribute(id, value); }
int cuDevicePrimaryCtxRetain(void** context, int device) { return (void)device, *context = names, SUCCESS; }
int cuCtxGetCurrent(void** context) { return *context = names, SUCCESS; }
int cuCtxSetCurrent(void* context) { return (void)context, SUCCESS; }
int cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  return *library = (void*)code, SUCCESS;
}
int cuLibraryUnload(void* library) { return (void)library, SUCCESS; }
int cuLibraryGetKernel(const void** kernel, void* library, const char* name) {
  (void)library;
  *kernel = keep(name);
  return *kernel == NULL ? INVALID_VALUE : SUCCESS;
}
int cuKernelGetFunction(const void** function, const void* kernel) { return *function = kernel, SUCCESS; }
int cuKernelSetAttribute(int id, int value, const void* kernel, int device) {
  return (void)id, (void)value, (void)kernel, (void)device, SUCCESS;
}
int cuFuncSetAttribute(const void* function, int id, int value) { return (void)function, (void)id, (void)value, SUCCESS; }
int cuLaunchKernelEx(const struct config* config, const void* kernel, void** arguments, void** extra) {
  return (void)extra, launch(config, config->shared & 0xffffffffu, kernel, arguments);
}
int cuStreamSynchronize(void* stream) { return (void)stream, SUCCESS; }

/* -- CuTeDSL's runtime ------------------------------------------------------------------------------------------- */

int _cudaLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
  return cuLibraryLoadData(library, code, a, b, c, d, e, f);
}
int _cudaLibraryUnload(void* library) { return (void)library, SUCCESS; }
int _cudaLibraryGetKernel(const void** kernel, void* library, const char* name) {
  return cuLibraryGetKernel(kernel, library, name);
}
int _cudaLaunchKernelEx(const struct config* config, const void* kernel, void** arguments) {
  return launch(config, config->shared, kernel, arguments);
}
int _cudaFuncSetAttribute(const void* function, int id, int value) {
  return (void)function, (void)id, (void)value, SUCCESS;
}
int _cudaKernelSetAttributeForDevice(const void* kernel, int id, int value, int device) {
  return (void)kernel, (void)id, (void)value, (void)device, SUCCESS;
}
int _cuKernelGetAttribute(int* value, int id, const void* kernel, int device) {
  return (void)id, (void)kernel, (void)device, *value = 0, SUCCESS;
}
int _cudaGetDevice(int* device) { return *device = 0, SUCCESS; }
int _cudaSetDevice(int device) { return (void)device, SUCCESS; }
int _cudaGetDeviceCount(int* count) { return *count = 1, SUCCESS; }
int _cudaDeviceGetAttribute(int* value, int id, int device) { return (void)device, attribute(id, value); }
int _cudaStreamSynchronize(void* stream) { return (void)stream, SUCCESS; }
int _cudaDeviceSynchronize(void) { return SUCCESS; }

int cuda_dialect_init_library_once(void** library, int (*init)(void**), int (*load)(void**, int),
                                   void (*error)(const char*, const char*)) {
  void* handle = NULL;
  if (*library != NULL) {
    return 0;
  }
  if (init(&handle) != SUCCESS || (load != NULL && load(&handle, 0) != SUCCESS)) {
    if (error != NULL) {
      error("RuntimeError", "a kernel library could not be loaded by the interpreter's runtime");
    }
    return -1;
  }
  *library = handle;
  return 0;
}
void cuda_dialect_unload_library_once(void** library) { *library = NULL; }
const char* cuda_dialect_get_error_name(int error) { return error ? "error" : "success"; }
void CuteDSLRT_TVMFFISetRaisedCudaError(int error) { (void)error; }
void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(int error) { (void)error; }
