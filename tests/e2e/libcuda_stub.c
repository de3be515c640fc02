/* A CUDA driver for machines that have none: it keeps what it is given, and says so, a line a call, in the file $STUB_LOG.
 *
 * STUB_CAPABILITY  what the devices are: 90
 * STUB_INIT        what cuInit answers
 * STUB_LOAD        what cuLibraryLoadData answers
 * STUB_CONTEXT     0: no context is current until somebody makes one so
 *
 * Code that is loaded is written to $STUB_LOG.<number>. With -DOLD it is a driver of before CUDA 12.0.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  int number;
} Library;

typedef struct {
  Library* library;
  char name[256];
  const size_t* sizes;
  int allowed[2]; /* dynamic shared memory, by device */
} Kernel;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int current = -1;
static int loaded;
static const size_t one_pointer[] = {8, 0}, scale[] = {8, 8, 4, 8, 1, 0}, relu[] = {8, 8, 8, 0};

static int set(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value ? atoi(value) : otherwise;
}

static void say(const char* format, ...) {
  va_list values;
  FILE* file = fopen(getenv("STUB_LOG"), "a");
  va_start(values, format);
  vfprintf(file, format, values);
  va_end(values);
  fclose(file);
}

CUresult cuInit(unsigned flags) {
  (void)flags;
  return set("STUB_INIT", 0);
}

CUresult cuGetErrorName(CUresult status, const char** name) {
  *name = status == CUDA_ERROR_NO_BINARY_FOR_GPU ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : status == CUDA_ERROR_NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : NULL;
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return number < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = (CUcontext)(intptr_t)(device + 1);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  current = (int)(intptr_t)context - 1;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current < 0 ? 0 : current;
  return current < 0 && !set("STUB_CONTEXT", 1) ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

/* The second device is an old one. */
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  const int capability = device ? 80 : set("STUB_CAPABILITY", 90);
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? capability / 10 : capability % 10;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* memory, size_t size) {
  *memory = (CUdeviceptr)(intptr_t)calloc(1, size);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
  memcpy((void*)(intptr_t)to, from, size);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) {
  memcpy(to, (const void*)(intptr_t)from, size);
  return CUDA_SUCCESS;
}

#ifndef OLD
/* Of a fatbin by its header, of an object by its section headers, which come last, of PTX by its end. */
static size_t size_of(const unsigned char* code) {
  uint64_t fatbin, offset;
  uint16_t count, head;
  if (code[0] == 0x7f) {
    memcpy(&offset, code + 40, 8);
    memcpy(&count, code + 60, 2);
    memcpy(&fatbin, code + 32, 8); /* program headers may lie behind them */
    memcpy(&head, code + 56, 2);
    offset += count * 64;
    fatbin += head * 56;
    return offset > fatbin ? offset : fatbin;
  }
  if (code[0] == 0x50 && code[1] == 0xed) {
    memcpy(&head, code + 6, 2);
    memcpy(&fatbin, code + 8, 8);
    return head + fatbin;
  }
  return strlen((const char*)code);
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values, unsigned count,
                           CUlibraryOption* library_options, void** library_values, unsigned library_count) {
  char path[4096];
  FILE* file;
  Library* made;
  (void)options, (void)values, (void)library_options, (void)library_values;
  if (count || library_count) return CUDA_ERROR_INVALID_VALUE;
  if (set("STUB_LOAD", 0)) return set("STUB_LOAD", 0);
  usleep(20000); /* long enough for other threads to come */
  made = malloc(sizeof *made);
  pthread_mutex_lock(&lock);
  made->number = loaded++;
  snprintf(path, sizeof path, "%s.%d", getenv("STUB_LOG"), made->number);
  file = fopen(path, "wb");
  fwrite(code, 1, size_of(code), file);
  fclose(file);
  say("load %d\n", made->number);
  pthread_mutex_unlock(&lock);
  *library = (CUlibrary)made;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  Kernel* made = calloc(1, sizeof *made);
  made->library = (Library*)library;
  snprintf(made->name, sizeof made->name, "%s", name);
  made->sizes = strstr(name, "scale") ? scale : strstr(name, "relu") ? relu : one_pointer;
  pthread_mutex_lock(&lock);
  say("kernel %d %s\n", made->library->number, name);
  pthread_mutex_unlock(&lock);
  *kernel = (CUkernel)made;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  if (strcmp(name, "counter")) return CUDA_ERROR_NOT_FOUND;
  *address = 0x7000 + ((Library*)library)->number;
  *bytes = 4;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = (CUfunction)kernel;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  const size_t* sizes = ((Kernel*)kernel)->sizes;
  size_t k;
  for (k = 0; k <= index; ++k)
    if (!sizes[k]) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  *size = sizes[index];
  return CUDA_SUCCESS;
}

/* One kernel has static shared memory. */
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute which, CUkernel kernel, CUdevice device) {
  Kernel* mine = (Kernel*)kernel;
  const int fixed = mine->sizes == scale ? 16384 : 0;
  *value = which == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? fixed : mine->allowed[device] ? mine->allowed[device] : 49152;
  return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device) {
  ((Kernel*)kernel)->allowed[device] = value;
  say("allow %s %d %d %d\n", ((Kernel*)kernel)->name, which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, value, device);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        CUstream stream, void** parameters, void** extra) {
  Kernel* kernel = (Kernel*)function;
  char text[512] = "";
  size_t k, i;
  for (k = 0; kernel->sizes[k]; ++k) {
    strcat(text, " ");
    for (i = 0; i < kernel->sizes[k]; ++i) sprintf(text + strlen(text), "%02x", ((unsigned char*)parameters[k])[i]);
  }
  pthread_mutex_lock(&lock);
  say("launch %d %s %u,%u,%u %u,%u,%u %u %d%s\n", kernel->library->number, kernel->name, gx, gy, gz, bx, by, bz, shared,
      stream == NULL && extra == NULL, text);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
#endif
