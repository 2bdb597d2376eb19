// Input and output of the commands: whole texts in, standard output, and result files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::cli {

// Where kvrun keeps what it is to know later: "$XDG_STATE_HOME/kvrun", else "$HOME/.local/state/kvrun"; empty
// where neither variable is an absolute path. It need not be there.
std::string StateFolder();

// Makes sure that descriptors 0 to 2 are taken, so that no file of ours is mistaken for one of them.
void GuardStandardStreams();

// A descriptor to read from, which the caller closes; -1 and errno where it cannot be had. A pipe is opened
// at once, and WaitReadable waits for its writer: open() would wait where a signal can be missed. Reads may
// answer EAGAIN.
int OpenToRead(const std::string& path);

// How much of a file is read: what has more is refused as soon as that is seen, as a device may have no end.
struct TextLimit {
  uint64_t n_bytes;
  std::string why;  // after "it has more than 1 MiB, "
};
// Of texts that are read whole: what is encoded at once, and what memory has room for.
TextLimit LimitOfTexts();
// Of what people write for kvrun: a list of options, a chat template. `what` as in "a chat template".
TextLimit LimitOfSmallFile(const std::string& what);

// The whole content of a file; "-" is standard input. Ctrl-C while waiting for it is an Interruption.
std::string ReadText(const std::string& path, const TextLimit& limit = LimitOfTexts());

// Throws a UsageError where a name is empty, or standard input is named twice, which can be read only once.
void CheckTextNames(const std::vector<std::string>& paths);
// The texts of all, in their order. The limit is that of all together.
std::vector<std::string> ReadTexts(const std::vector<std::string>& paths);
// One text of them, with a blank line (two line ends) between each and the next.
std::string JoinedTexts(const std::vector<std::string>& texts);

// Unbuffered. The answer is 0 or an errno value.
int TryWriteStdout(std::string_view text);
// The same, or a Failure (OutputClosed if the reader is gone).
void WriteStdout(std::string_view text);
[[noreturn]] void ThrowStdoutError(int error_number);

// What messages begin with; "kvrun" until it is set.
void SetProgramName(const std::string& name);
// One line on standard error: "NAME: MESSAGE", the message Printable.
void PrintMessage(std::string_view message);
// The same of what ends the program: in red on a terminal.
void PrintError(std::string_view message);
void WriteStderr(std::string_view text);

// Throws where a ResultFile of this path could not be written, and leaves nothing. What is not a regular file
// is not opened: whoever reads a pipe would see it end.
void CheckWritable(const std::string& path);

// A result file that appears under its name only when it is complete: it is written beside it first. What is
// not a regular file (/dev/stdout, a pipe) is written directly.
class ResultFile {
 public:
  explicit ResultFile(const std::string& path);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  void Write(const void* data, size_t size_bytes);
  void Commit();

 private:
  [[noreturn]] void Fail(int error_number) const;

  std::string path_;            // as the person wrote it
  std::string target_;          // links followed
  std::string temporary_path_;  // empty: written directly
  int fd_ = -1;
};

}  // namespace kvrun::cli
