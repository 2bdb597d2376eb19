// Which instruction set the kernels of the CPU run with. It is chosen for the process: the best, unless
// another is named, but while self-tests run.
#pragma once

#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"

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

// The names that users know, of those that this processor has, the best first: "amx", "avx512", "avx2-vnni",
// "avx2", "sse4"; "neon-i8mm", "neon-dot", "neon". Dashes: with instructions that not every processor of the
// set has.
std::vector<std::string> NamedInstructionSets();
// From now on this process computes with the named one; an empty name is the best. kInvalidArgument: there is
// no such set; kUnsupported: this processor lacks it.
Status UseInstructionSet(std::string_view name);

// While it is held, the instruction set does not change: parts of an operation leave each other what only
// the same one understands.
std::shared_lock<std::shared_mutex> KeepInstructionSet();

// Chooses an instruction set for all devices of the process; the one before again when destroyed. There is
// one at a time: another waits.
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
