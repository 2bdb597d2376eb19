// Which instruction set the kernels of the CPU run with. It is chosen for the process: the best, but while
// self-tests run.
#pragma once

#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

namespace kvrun::host {

struct InstructionSet {
  int64_t target;    // of hwy/targets.h
  int64_t mask;      // and those below it, for kernels that are not compiled for this one
  std::string name;  // Highway's: "AVX3_DL", "AVX2", "NEON"
};

// Those that kernels are compiled for and this processor has, the best first.
std::vector<InstructionSet> InstructionSets();
// The name of the one in use.
std::string InstructionSetName();

// While it is held, the instruction set does not change: parts of an operation leave each other what only
// the same one understands.
std::shared_lock<std::shared_mutex> KeepInstructionSet();

// Chooses an instruction set for all devices of the process; the best again when destroyed. There is one at a
// time: another waits.
class ChosenInstructionSet {
 public:
  explicit ChosenInstructionSet(const InstructionSet& set);
  ~ChosenInstructionSet();
  ChosenInstructionSet(const ChosenInstructionSet&) = delete;
  ChosenInstructionSet& operator=(const ChosenInstructionSet&) = delete;

 private:
  std::unique_lock<std::mutex> alone_;
};

}  // namespace kvrun::host
