// What the tests of files with save points share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/store/save_point_file.h"
#include "runtime/store/state_file.h"
#include "runtime/store/state_visitor.h"
#include "tests/storage/power_cut_file.h"
#include "tests/storage/storage_fixture.h"

namespace kvrun::testing {

inline constexpr uint32_t kUnitBytes = 2 * PowerCutDisk::kBlockBytes;

// Answers what Commit does; the save point is not at its end.
inline Status CommitSavePoint(SavePointFile& file, StateFile& state) {
  KVRUN_RETURN_IF_ERROR(file.Sync());
  KVRUN_RETURN_IF_ERROR(state.BeginSave());
  StateSaver saver(state);
  KVRUN_RETURN_IF_ERROR(file.VisitState(saver, 0));
  return state.Commit();
}

inline Status SaveTo(SavePointFile& file, StateFile& state) {
  KVRUN_RETURN_IF_ERROR(CommitSavePoint(file, state));
  file.EndSave();
  return Status::Ok();
}

inline Status LoadFrom(SavePointFile& file, const StateFile& state) {
  StateLoader loader(state);
  return file.VisitState(loader, 0);
}

// A unit's bytes say which it is and what was written to it.
inline int WriteUnit(BlockFile& file, uint32_t unit, uint64_t version, uint32_t n_units = 1) {
  const AlignedMemory memory(size_t{n_units} * kUnitBytes);
  FillPattern(memory.span(), uint64_t{unit} * kUnitBytes, version);
  return DoOne(file, IoKind::kWrite, uint64_t{unit} * kUnitBytes, memory.span());
}

inline ::testing::AssertionResult UnitHolds(BlockFile& file, uint32_t unit, uint64_t version,
                                            uint32_t n_units = 1) {
  const AlignedMemory memory(size_t{n_units} * kUnitBytes);
  const int error = DoOne(file, IoKind::kRead, uint64_t{unit} * kUnitBytes, memory.span());
  if (error != 0) return ::testing::AssertionFailure() << "error " << error;
  if (HoldsPattern(memory.span(), uint64_t{unit} * kUnitBytes, version)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "other bytes";
}

}  // namespace kvrun::testing
