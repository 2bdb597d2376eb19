// The one place where volk's function pointers are defined; the loader is opened at run time.
#define VOLK_IMPLEMENTATION
#include <volk.h>
