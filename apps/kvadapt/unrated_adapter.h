// The adapter that a calibration has made, until its reuse rates are measured: an output that is there
// already is replaced by a complete one alone.
#pragma once

#include <functional>
#include <string>

namespace kvrun::cli {

class UnratedAdapter {
 public:
  // Beside what `output` leads to: OUTPUT.unrated.
  explicit UnratedAdapter(const std::string& output);

  const std::string& path() const { return path_; }

  // Before any long work, beside CheckOutputs: a Failure where path() is there and is no adapter.
  void Check() const;

  // `work` adds to the file what lacks; then it takes the output's name, and the mode of what was there.
  // Where `work` fails, it does so only if there is no output yet, and the Failure says what lies where, and
  // what `goes_on` answers then: "the same command goes on from ..."; empty: it begins anew.
  void Complete(const std::function<void()>& work, const std::function<std::string()>& goes_on) const;

 private:
  bool HasOld() const;
  void TakeModeOfOld() const;
  // After a failure: an output that is not there yet is the unrated one. Says what lies where.
  std::string Settle(const std::string& goes_on) const;

  std::string output_;  // as the person wrote it
  std::string target_;  // links followed
  std::string path_;
};

}  // namespace kvrun::cli
