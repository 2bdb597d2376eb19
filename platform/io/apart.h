// Work that may crash or hang, carried out in a process of its own.
#pragma once

#include <functional>
#include <string>

namespace kvrun {

struct ApartOutcome {
  enum class Kind {
    kAnswered,   // `answer` is what the work returned
    kSignal,     // a signal ended it: `number`
    kExit,       // it ended by itself before it answered: `number` is its exit status
    kTimedOut,   // it did not answer in time, or cannot any more, and was ended
    kCancelled,  // `is_cancelled` said so, and it was ended
    kNotBegun    // the system did not allow another process: `number` is an errno value
  };
  Kind kind = Kind::kNotBegun;
  int number = 0;
  std::string answer;
};

struct ApartOptions {
  double limit_s = 20.0;
  std::function<bool()> is_cancelled;  // asked in this process, some times a second; may be empty
  bool keep_stderr = false;            // else what the work writes there is dropped
};

// Whether this process may be copied: it has one thread only. A copy of one with more could wait for ever for
// a lock that another thread held.
bool CanRunApart();

// Calls `work` in a copy of this process (fork), which sees all that is here and changes none of it. No
// handler of this process runs there, and no function that was registered for its end. An exception that
// leaves `work` ends it by SIGABRT. The copy ends when this process does. Where memory is short, the system
// ends the copy before all others.
ApartOutcome RunApart(const std::function<std::string()>& work, const ApartOptions& options);

}  // namespace kvrun
