// Where a chat's lines come from.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace kvrun::cli {

class LineReader {
 public:
  virtual ~LineReader() = default;

  // What was typed until Enter, without the line's end; may have several lines where the reader lets a person
  // type them. Nothing at the end of the input, or if a signal ended it (then Interrupted()).
  virtual std::optional<std::string> Next() = 0;
};

// Lines of standard input as they are, of any length. On a terminal it shows a prompt on standard error.
std::unique_ptr<LineReader> PlainLines();

}  // namespace kvrun::cli
