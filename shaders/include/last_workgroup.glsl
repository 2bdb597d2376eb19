// Workgroups that share something count themselves, and the last one goes on. The includer declares a coherent buffer
// of uint counters[], zeros before and after, and defines GROUP_SYNC(), behind which what any of
// the workgroup's invocations wrote to shared memory is seen by all.
shared uint shared_is_last;

// Of n workgroups: whether all others have been here. Then what they wrote before can be read, where it is coherent.
bool IsLast(uint counter, uint n) {
  memoryBarrierBuffer();
  GROUP_SYNC();
  if (gl_LocalInvocationIndex == 0) {
    const uint before = atomicAdd(counters[counter], 1);
    shared_is_last = before + 1 == n ? 1 : 0;
    if (before + 1 == n) counters[counter] = 0;
  }
  GROUP_SYNC();
  memoryBarrierBuffer();
  return shared_is_last != 0;
}
