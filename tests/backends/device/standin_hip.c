/* A stand-in for libamdhip64: host memory in place of a device, two kernels written in C, and a log of the calls.
 * The test tells it what to report through standin_setup. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int devices = 1, lds_bytes = 65536, wave_size = 64;
static char arch_name[64] = "gfx942:sramecc+:xnack-";
static char failing[64] = "";
static char calls[1 << 16];
static int live_allocations = 0;
static unsigned last_shared = 0;

#define EXPORT __attribute__((visibility("default")))
static int enter(const char *name) {
  if (strlen(calls) + strlen(name) + 2 < sizeof calls) strcat(strcat(calls, name), " ");
  return strcmp(name, failing) == 0 ? 719 : 0;
}
#define ENTER int status = enter(__func__); if (status) return status;

EXPORT void standin_setup(int count, const char *arch, int lds, int wave, const char *fail) {
  devices = count; lds_bytes = lds; wave_size = wave; calls[0] = 0;
  snprintf(arch_name, sizeof arch_name, "%s", arch);
  snprintf(failing, sizeof failing, "%s", fail);
}
EXPORT const char *standin_calls(void) { return calls; }
EXPORT int standin_live(void) { return live_allocations; }
EXPORT unsigned standin_shared(void) { return last_shared; }

EXPORT int hipInit(unsigned flags) { ENTER (void)flags; return 0; }
EXPORT int hipRuntimeGetVersion(int *v) { ENTER *v = 70100000; return 0; }
EXPORT int hipGetDeviceCount(int *n) { ENTER if (!devices) return 100; *n = devices; return 0; }
EXPORT int hipSetDevice(int device) { ENTER (void)device; return 0; }
EXPORT int hipDeviceGetAttribute(int *value, int attribute, int device) {
  ENTER (void)device;
  switch (attribute) {
    case 56: *value = 1024; return 0;
    case 63: *value = 304; return 0;
    case 74: *value = lds_bytes; return 0;
    case 87: *value = wave_size; return 0;
    default: return 1;
  }
}
EXPORT int hipGetDevicePropertiesR0600(void *properties, int device) {
  ENTER (void)device;
  memset(properties, 0, 1472);
  strcpy((char *)properties, "AMD Instinct MI300X");
  strcpy((char *)properties + 1160, arch_name);
  return 0;
}
EXPORT const char *hipGetErrorString(int status) {
  return status == 100 ? "no ROCm-capable device is detected" : status == 719 ? "unspecified launch failure" : "error";
}
EXPORT int hipModuleLoadData(void **module, const void *image) {
  ENTER if (memcmp(image, "\177ELF", 4)) return 209;
  *module = (void *)0x10; return 0;
}
EXPORT int hipModuleUnload(void *module) { ENTER (void)module; return 0; }
EXPORT int hipModuleGetFunction(void **function, void *module, const char *name) {
  ENTER (void)module;
  if (!strcmp(name, "scale")) *function = (void *)1;
  else if (!strcmp(name, "overrun")) *function = (void *)2;
  else return 500;
  return 0;
}
EXPORT int hipMalloc(void **pointer, size_t size) { ENTER *pointer = malloc(size); ++live_allocations; return 0; }
EXPORT int hipFree(void *pointer) { ENTER free(pointer); --live_allocations; return 0; }
EXPORT int hipMemcpyHtoD(void *to, const void *from, size_t size) { ENTER memcpy(to, from, size); return 0; }
EXPORT int hipMemcpyDtoH(void *to, const void *from, size_t size) { ENTER memcpy(to, from, size); return 0; }
EXPORT int hipMemsetD8(void *to, unsigned char value, size_t size) { ENTER memset(to, value, size); return 0; }
EXPORT int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, void *stream, void **args, void **extra) {
  ENTER (void)stream; (void)extra;
  last_shared = shared;
  const float *x = *(const float **)args[0];
  float *y = *(float **)args[1];
  int n = *(int *)args[2];
  if ((uint64_t)gx * gy * gz * bx * by * bz < (uint64_t)n) return 1;
  if (function == (void *)2) y[n] = 1.0f;
  else for (int i = 0; i < n; ++i) y[i] = x[i] * *(float *)args[3] + (float)*(int64_t *)args[4];
  return 0;
}
EXPORT int hipDeviceSynchronize(void) { ENTER return 0; }
EXPORT int hipEventCreateWithFlags(void **event, unsigned flags) { ENTER (void)flags; *event = malloc(1); return 0; }
EXPORT int hipEventRecord(void *event, void *stream) { ENTER (void)event; (void)stream; return 0; }
EXPORT int hipEventSynchronize(void *event) { ENTER (void)event; return 0; }
EXPORT int hipEventElapsedTime(float *ms, void *start, void *stop) { ENTER (void)start; (void)stop; *ms = 0.25f; return 0; }
EXPORT int hipEventDestroy(void *event) { ENTER free(event); return 0; }
