#include "apps/kvrun/line_reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/interrupt.h"

namespace kvrun::cli {
namespace {

constexpr size_t kMaxLineBytes = size_t{64} << 20;  // more than a context holds

class PlainLineReader : public LineReader {
 public:
  std::optional<std::string> Next() override {
    if (terminal_) WriteStderr("> ");
    std::optional<std::string> line = NextLine();
    if (!line && terminal_) WriteStderr("\n");
    return line;
  }

 private:
  std::optional<std::string> NextLine() {
    size_t searched = 0;
    size_t end;
    while ((end = buffer_.find('\n', searched)) == std::string::npos) {
      searched = buffer_.size();
      if (!WaitReadable(STDIN_FILENO)) return std::nullopt;
      char chunk[4096];
      const ssize_t size = ::read(STDIN_FILENO, chunk, sizeof chunk);
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return buffer_.empty() ? std::nullopt : std::optional(std::exchange(buffer_, {}));
      buffer_.append(chunk, static_cast<size_t>(size));
      if (buffer_.size() > kMaxLineBytes) {
        throw Failure(KVRUN_INVALID_ARGUMENT,
                      fmt::format("standard input has a line of more than {} MiB: end each message with a "
                                  "line end",
                                  kMaxLineBytes >> 20));
      }
    }
    std::string line = buffer_.substr(0, end);
    buffer_.erase(0, end + 1);
    return line;
  }

  const bool terminal_ = isatty(STDIN_FILENO) == 1;
  std::string buffer_;
};

}  // namespace

std::unique_ptr<LineReader> PlainLines() { return std::make_unique<PlainLineReader>(); }

}  // namespace kvrun::cli
