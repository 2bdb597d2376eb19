// Memory that was freed, but that the C library keeps.
#pragma once

namespace kvrun {

// Gives what can be given back to the system. Takes milliseconds: after loading or compiling, never in a
// loop.
void ReturnFreedMemory();

}  // namespace kvrun
