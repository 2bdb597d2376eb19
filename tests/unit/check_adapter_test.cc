// scripts/check-adapter, where Python has what it needs: what it refuses, and that nothing compared is no
// success.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/engine/measure/calibration_sums.h"
#include "runtime/kv/math/adapter.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using testing::OrDie;

ProgramResult Python(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "python3");
  return RunProgram("/usr/bin/env", arguments);
}

class CheckAdapter : public ::testing::Test {
 protected:
  void SetUp() override {
    const ProgramResult packages = Python({"-c", "import numpy, gguf"});
    if (packages.exit_code != 0) GTEST_SKIP() << "no Python with numpy and gguf: " << packages.err;
  }
  static ProgramResult Check(const std::string& adapter, const std::string& sums) {
    return Python({std::string(KVRUN_SOURCE_DIR) + "/scripts/check-adapter", adapter, sums});
  }
  // Of keys whose second moment is diagonal; the adapter is computed from it.
  void WriteFiles(const std::vector<double>& diagonal, uint32_t rank) const {
    const auto dim = static_cast<uint32_t>(diagonal.size());
    LayerTotals totals{
        .n_kv_heads = 1, .head_dim = dim, .n_keys = 10, .n_queries = 10, .keys = {}, .queries = {}};
    totals.keys.resize(size_t{dim + 1} * dim);
    totals.queries.resize(size_t{dim} * dim);
    for (size_t i = 0; i < dim; ++i) totals.keys[i * dim + i] = diagonal[i];
    Adapter adapter;
    adapter.kind = AdapterKind::kPlain;
    adapter.fingerprint = "0123";
    adapter.layers = {OrDie(ComputeAdapter(adapter.kind, totals.View(), rank))};
    ASSERT_TRUE(WriteAdapter(adapter, adapter_).ok());
    CalibrationSums sums;
    sums.fingerprint = adapter.fingerprint;
    sums.texts = std::string(32, '0');
    sums.n_pieces = 1;
    sums.n_tokens = 10;
    sums.layers = {totals};
    ASSERT_TRUE(WriteSums(sums, sums_).ok());
  }

  TemporaryFolder folder_;
  std::string adapter_ = folder_.Path("adapter.gguf");
  std::string sums_ = folder_.Path("sums.gguf");
};

TEST_F(CheckAdapter, AnAdapterIsHeldAgainstItsSums) {
  WriteFiles({40, 30, 20, 10}, 3);
  const ProgramResult good = Check(adapter_, sums_);
  EXPECT_EQ(good.exit_code, 0) << good.out << good.err;
  EXPECT_NE(good.out.find("; 3 angles\n"), std::string::npos) << good.out;
  const std::string sums = ReadWholeFile(sums_);
  WriteFiles({40, 10, 20, 30}, 3);
  const ProgramResult other = Check(adapter_, folder_.Write("other", sums));
  EXPECT_EQ(other.exit_code, 1) << other.out << other.err;
}

TEST_F(CheckAdapter, ThatNoAngleWasComparedIsAFailure) {
  WriteFiles({10, 10, 10, 10}, 3);
  const ProgramResult result = Check(adapter_, sums_);
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_NE(result.out.find("; 0 angles\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("no angle was compared"), std::string::npos) << result.out;
}

TEST_F(CheckAdapter, WhatCannotBeReadIsOneLine) {
  WriteFiles({40, 30, 20, 10}, 3);
  const std::string none = folder_.Path("none");
  const std::string text = folder_.Write("text", "hello");
  const std::string begin = "check-adapter: ";
  const std::pair<std::pair<std::string, std::string>, std::string> cases[] = {
      {{none, sums_}, "cannot read " + none + ": No such file or directory\n"},
      {{adapter_, none}, "cannot read " + none + ": No such file or directory\n"},
      {{text, sums_}, "cannot read " + text + ": it is no GGUF file that can be read\n"},
      {{sums_, sums_}, sums_ + " is a file of 'kvrun-sums', not of 'kvrun-adapter'\n"},
  };
  for (const auto& [files, message] : cases) {
    const ProgramResult result = Check(files.first, files.second);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.err, begin + message);
    EXPECT_EQ(result.out, "");
  }
}

}  // namespace
}  // namespace kvrun
