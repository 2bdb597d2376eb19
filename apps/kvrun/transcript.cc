#include "apps/kvrun/transcript.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "apps/common/failure.h"
#include "apps/common/plural.h"

namespace kvrun::cli {
namespace {

int WriteAndClose(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error_number = errno;
      ::close(fd);
      return error_number;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return ::close(fd) == 0 ? 0 : errno;
}

}  // namespace

std::string Transcript(const std::string& model, const std::string& system, const std::vector<Turn>& turns) {
  std::string text = fmt::format("# Conversation with {}\n", model);
  if (!system.empty()) text += fmt::format("\n## System\n\n{}\n", system);
  for (const Turn& turn : turns) {
    text += "\n## User\n\n";
    for (const Document& document : turn.documents) {
      text += fmt::format("[document: {}, {}]\n\n", document.name, Counted(document.text.size(), "byte"));
    }
    text += fmt::format("{}\n\n## Assistant\n\n{}\n", turn.message, turn.answer);
  }
  return text;
}

void WriteNewFile(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0 && errno == EEXIST) {
    throw Failure(KVRUN_IO_ERROR, fmt::format("{} is there already: name a new file", path));
  }
  const int error_number = fd < 0 ? errno : WriteAndClose(fd, text);
  if (error_number == 0) return;
  if (fd >= 0) ::unlink(path.c_str());
  throw Failure(KVRUN_IO_ERROR, fmt::format("cannot write {}: {}", path, std::strerror(error_number)));
}

}  // namespace kvrun::cli
