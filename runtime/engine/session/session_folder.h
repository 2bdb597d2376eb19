// Where sessions are kept that are called by a name.
#pragma once

#include <string>

#include "platform/base/status.h"

namespace kvrun {

// "thesis" is a file of the user's folder for sessions ($XDG_STATE_HOME/kvrun/sessions, or
// $HOME/.local/state/kvrun/sessions), which is made where it is missing (0700); what has a '/' in it is a
// path. kInvalidArgument: it can be neither.
Result<std::string> SessionPath(const std::string& name_or_path);

// The folder; it need not be there. kNotFound: neither variable is an absolute path.
Result<std::string> SessionsFolder();

// The file in that folder in which all processes count what they write (WriteMeter); empty where there is no
// such folder.
std::string WrittenPath();

inline constexpr const char* kSessionEnding = ".session";

}  // namespace kvrun
