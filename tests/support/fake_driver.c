/* A Vulkan driver that fails: when the loader opens it, or (CRASH_DEVICE) when a device of it is created,
 * where it is the driver $FAKE_DRIVER_BEHIND. Each time that it is about to fail it adds a byte to the file
 * $FAKE_DRIVER_TRACE. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vulkan_core.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t* version);
EXPORT PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance instance, const char* name);

static void Trace(void) {
  const char* path = getenv("FAKE_DRIVER_TRACE");
  const int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (fd < 0) return;
  if (write(fd, "x", 1) != 1) _exit(9);
  close(fd);
}

static VkResult Fail(void) {
  Trace();
#if defined(CRASH_SEGFAULT)
  raise(SIGSEGV);
#elif defined(CRASH_EXIT)
  exit(3); /* with the loader's lock held, for which the loader's own end waits */
#elif defined(CRASH_HANG)
  for (;;) pause();
#else
  abort();
#endif
  return VK_ERROR_INITIALIZATION_FAILED;
}

#if defined(CRASH_DEVICE)

static void* Behind(const char* name) {
  static void* library = NULL;
  if (library == NULL) library = dlopen(getenv("FAKE_DRIVER_BEHIND"), RTLD_NOW | RTLD_LOCAL);
  return library == NULL ? NULL : dlsym(library, name);
}

VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t* version) {
  VkResult (*negotiate)(uint32_t*) =
      (VkResult(*)(uint32_t*))Behind("vk_icdNegotiateLoaderICDInterfaceVersion");
  return negotiate == NULL ? VK_ERROR_INCOMPATIBLE_DRIVER : negotiate(version);
}

PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance instance, const char* name) {
  PFN_vkVoidFunction (*get)(VkInstance, const char*) =
      (PFN_vkVoidFunction(*)(VkInstance, const char*))Behind("vk_icdGetInstanceProcAddr");
  if (get == NULL) return NULL;
  return strcmp(name, "vkCreateDevice") == 0 ? (PFN_vkVoidFunction)Fail : get(instance, name);
}

#else

VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t* version) {
  (void)version;
  return Fail();
}

PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance instance, const char* name) {
  (void)instance;
  (void)name;
  return NULL;
}

#endif
