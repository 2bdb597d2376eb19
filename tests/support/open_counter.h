// Counts how often a file is opened.
#pragma once

#include <string>

namespace kvrun::testing {

class OpenCounter {
 public:
  // The file is there.
  explicit OpenCounter(const std::string& path);
  OpenCounter(const OpenCounter&) = delete;
  OpenCounter& operator=(const OpenCounter&) = delete;
  ~OpenCounter();

  // Not where the system does not say: in some sandboxes.
  bool works() const { return works_; }
  // Since the last call.
  int Count();

 private:
  int inotify_;
  bool works_ = false;
};

}  // namespace kvrun::testing
