// Ctrl-C (SIGINT) and SIGTERM: asked for by polling, so that work ends where it is safe to end.
#pragma once

namespace kvrun::cli {

// Counts the two signals instead of dying of them; the third that arrives before ClearInterrupt() ends the
// process at once. A write to a closed pipe fails with EPIPE instead of killing. All of these and SIGHUP and
// SIGQUIT, which end the process as ever, tell the library that the user did so (kvrun_interrupt_trials).
void InstallSignalHandlers();

bool Interrupted();
// Forgets Ctrl-C. SIGTERM asks the whole process to end, and is not forgotten.
void ClearInterrupt();
bool TerminationAsked();

// Called in the signal handler before the third signal ends the process: what must not be left behind, as a
// terminal in other modes. Only what is async-signal-safe; null: nothing.
void SetForcedExitHook(void (*hook)());

// Waits until `fd` can be read (or has ended). False if a signal came first.
bool WaitReadable(int fd);

}  // namespace kvrun::cli
