// A calibration's sums: what is written of them, that an interrupted one goes on from them, and that adapters
// are what another decomposition makes of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <Eigen/SVD>

#include "runtime/engine/measure/calibration.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/reference_files.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

using Ids = std::vector<int32_t>;
using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;
using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr AdapterKind kKinds[] = {AdapterKind::kPlain, AdapterKind::kCentred, AdapterKind::kQuery,
                                  AdapterKind::kQueryCentred};

class CalibrateSums : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel({"SelfMade", SharedPath("models/stories260K.gguf").value_or("")}, folder_);
    const uint32_t n_vocab = config().n_vocab;
    texts_ = {SomeIds(700, 1, n_vocab), SomeIds(320, 2, n_vocab), SomeIds(40, 3, n_vocab)};
  }

  const ModelConfig& config() const { return loaded_.model->config; }
  // In pieces of 300, 300, 100, 300, 20 and 40 tokens; the checkpoint is written after each.
  CalibrationOptions Options() const {
    CalibrationOptions options;
    options.n_ctx = 300;
    options.checkpoint_path = partial_;
    options.checkpoint_period_s = 0.0;
    for (const Ids& ids : texts_) options.texts.emplace_back(ids);
    return options;
  }
  Result<Calibration> Calibrate(const CalibrationOptions& options, const std::string& out,
                                const ProgressCallback& progress = {}) {
    return CalibrateAdapter(*loaded_.model, loaded_.weights, *loaded_.device, &mutex_, options, out,
                            progress);
  }
  // As by Ctrl-C, after so many tokens.
  void Interrupt(const CalibrationOptions& options, uint64_t n_tokens) {
    const auto stopped = Calibrate(options, out_, [&](uint64_t done, uint64_t) { return done >= n_tokens; });
    EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
  FoundCheckpoint Find(const CalibrationOptions& options) const {
    return OrDie(FindCheckpoint(*loaded_.model, options, OrDie(PlanCalibration(options, config()))));
  }
  // The progress of another calibration is not lost.
  void ExpectRefused(const CalibrationOptions& options, const std::string& why) {
    const std::string before = ReadWholeFile(partial_);
    bool began = false;
    const auto refused = Calibrate(options, out_, [&](uint64_t, uint64_t) { return began = true; });
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.status().message(),
              partial_ + " holds the sums of 300 tokens of another calibration (" + why +
                  "): to go on with that one, give the same command and texts to the same version of kvrun; "
                  "to start anew, remove the file, give --restart, or name another output");
    const CalibrationPlan plan = OrDie(PlanCalibration(options, config()));
    EXPECT_EQ(FindCheckpoint(*loaded_.model, options, plan).status().message(), refused.status().message());
    EXPECT_FALSE(began);
    EXPECT_TRUE(ReadWholeFile(partial_) == before);
  }
  void ExpectAnew(const CalibrationOptions& options, const std::string& why) const {
    const FoundCheckpoint found = Find(options);
    EXPECT_FALSE(found.sums.has_value()) << why;
    EXPECT_TRUE(found.note.starts_with("starting anew")) << found.note;
    EXPECT_NE(found.note.find(why), std::string::npos) << found.note;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  std::vector<Ids> texts_;
  std::mutex mutex_;
  std::string out_ = folder_.Path("adapter.gguf");
  std::string partial_ = folder_.Path("adapter.gguf.partial");
};

TEST_F(CalibrateSums, GoingOnGivesTheSame) {
  const std::string whole = folder_.Path("whole.gguf");
  CalibrationOptions options = Options();
  options.checkpoint_path.clear();
  options.sums_path = folder_.Path("whole-sums");
  ASSERT_TRUE(Calibrate(options, whole).ok());
  // Before and in the first piece, between pieces, in the second, between others, while adapters are
  // computed. Progress is asked every 256 tokens of a piece.
  const std::pair<uint64_t, uint64_t> cases[] = {{0, 0},     {200, 0},     {300, 300},
                                                 {500, 300}, {1000, 1000}, {1059, 1060}};
  for (const auto& [stop_at, kept] : cases) {
    SCOPED_TRACE(stop_at);
    options = Options();
    options.sums_path = folder_.Path("sums");
    options.checkpoint_period_s = 1e9;  // at the end alone
    Interrupt(options, stop_at);
    EXPECT_EQ(std::filesystem::exists(partial_), kept > 0);
    EXPECT_EQ(Find(options).note.starts_with("going on from"), kept > 0) << Find(options).note;
    std::vector<uint64_t> told;
    const auto made = Calibrate(options, out_, [&](uint64_t done, uint64_t) {
      told.push_back(done);
      return false;
    });
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->n_resumed_tokens, kept);
    EXPECT_EQ(told.front(), kept == 1060 ? 1059 : kept);
    EXPECT_EQ(ReadSums(options.sums_path)->layers, ReadSums(folder_.Path("whole-sums"))->layers);
    EXPECT_TRUE(ReadWholeFile(out_) == ReadWholeFile(whole));
    EXPECT_FALSE(std::filesystem::exists(partial_));
    std::filesystem::remove(out_);
  }
}

// For who does more with the adapter: all sums are in it, and make the same adapter without a step.
TEST_F(CalibrateSums, ACheckpointIsKeptWhereItIsAskedFor) {
  CalibrationOptions options = Options();
  options.keeps_checkpoint = true;
  options.checkpoint_period_s = 1e9;
  ASSERT_TRUE(Calibrate(options, out_).ok());
  EXPECT_EQ(ReadSums(partial_)->n_tokens, 1060U);
  EXPECT_EQ(Find(options).note, "going on from " + partial_ + ": 1060 of 1060 tokens are done");
  const std::string whole = ReadWholeFile(out_);
  std::filesystem::remove(out_);
  uint64_t first = 2000;  // more than there are
  const auto again = Calibrate(options, out_, [&](uint64_t done, uint64_t) {
    first = std::min(first, done);
    return false;
  });
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->n_resumed_tokens, 1060U);
  EXPECT_EQ(first, 1059U) << "nothing is summed up again";
  EXPECT_TRUE(ReadWholeFile(out_) == whole);
  EXPECT_TRUE(std::filesystem::exists(partial_));
  options.keeps_checkpoint = false;
  ASSERT_TRUE(Calibrate(options, out_).ok());
  EXPECT_FALSE(std::filesystem::exists(partial_));
}

TEST_F(CalibrateSums, ACheckpointIsWrittenMeanwhile) {
  uint64_t in_file = 0;
  ASSERT_TRUE(Calibrate(Options(), out_, [&](uint64_t done, uint64_t) {
                if (done == 1000) in_file = ReadSums(partial_)->n_tokens;
                return false;
              }).ok());
  EXPECT_EQ(in_file, 1000U);
}

TEST_F(CalibrateSums, AnotherCalibrationsProgressIsNotReplacedUnasked) {
  Interrupt(Options(), 500);
  EXPECT_TRUE(Find(Options()).sums.has_value());
  CalibrationOptions other = Options();
  other.kind = AdapterKind::kPlain;  // the sums do not depend on it, nor on the rank
  other.rank = 2;
  EXPECT_TRUE(Find(other).sums.has_value());
  other = Options();
  other.restarts = true;
  ExpectAnew(other, "as asked");
  other = Options();
  other.n_ctx = 299;
  ExpectRefused(other, "its pieces have 300 tokens, not 299");
  other = Options();
  other.texts.pop_back();
  ExpectRefused(other, "it is of other texts");
  CalibrationSums sums = OrDie(ReadSums(partial_));
  sums.fingerprint = "another";
  ASSERT_TRUE(WriteSums(sums, partial_).ok());
  ExpectRefused(Options(), "it is of another model");
  other = Options();
  other.restarts = true;
  EXPECT_EQ(Calibrate(other, out_)->n_resumed_tokens, 0U);
}

TEST_F(CalibrateSums, ABrokenCheckpointIsNotUsed) {
  Interrupt(Options(), 500);
  const std::string good = ReadWholeFile(partial_);
  std::string flipped = good;
  flipped[flipped.size() - 100] = static_cast<char>(flipped[flipped.size() - 100] ^ 1);
  for (const std::string& bad :
       {flipped, good.substr(0, good.size() / 2), good.substr(0, 100), std::string()}) {
    folder_.Write("adapter.gguf.partial", bad);
    ExpectAnew(Options(), partial_);
    const auto made = Calibrate(Options(), out_);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->n_resumed_tokens, 0U);
  }
}

TEST_F(CalibrateSums, WhatIsNoCheckpointIsNotReplacedUnasked) {
  const CalibrationPlan plan = OrDie(PlanCalibration(Options(), config()));
  const std::string model = ReadWholeFile(WriteModel(folder_, "model.gguf", TinyModel({}).Build()));
  for (const std::string& text : {std::string("precious\n"), std::string("GGUF precious"), model,
                                  model.substr(0, model.size() / 2), "kvrun-sums " + model}) {
    folder_.Write("adapter.gguf.partial", text);
    bool began = false;
    const auto refused = Calibrate(Options(), out_, [&](uint64_t, uint64_t) { return began = true; });
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(
        refused.status().message().starts_with(partial_ + " is not the file of an interrupted calibration"))
        << refused.status().message();
    EXPECT_EQ(FindCheckpoint(*loaded_.model, Options(), plan).status().message(), refused.status().message());
    EXPECT_FALSE(began);
    EXPECT_TRUE(ReadWholeFile(partial_) == text);
  }
  CalibrationOptions asked = Options();
  asked.restarts = true;
  EXPECT_TRUE(Calibrate(asked, out_).ok());
  EXPECT_FALSE(std::filesystem::exists(partial_));
}

TEST_F(CalibrateSums, AFolderThatCannotBeWrittenIsSaidFirst) {
  bool began = false;
  for (std::string CalibrationOptions::*path :
       {&CalibrationOptions::checkpoint_path, &CalibrationOptions::sums_path}) {
    CalibrationOptions options = Options();
    options.*path = folder_.Path("no/such/file");
    const auto refused = Calibrate(options, out_, [&](uint64_t, uint64_t) { return began = true; });
    EXPECT_EQ(refused.status().code(), StatusCode::kNotFound);
    EXPECT_NE(refused.status().message().find("no/such/file"), std::string::npos);
  }
  EXPECT_FALSE(began);
}

// Square root of the queries' second moment per KV head, and its inverse, by singular values.
struct Weights {
  Matrix root;
  Matrix inverse;
};

Weights WeightsOf(AdapterKind kind, const LayerTotals& totals) {
  const auto dim = static_cast<Eigen::Index>(totals.head_dim);
  const auto key_dim = dim * totals.n_kv_heads;
  Weights weights{Matrix::Identity(key_dim, key_dim), Matrix::Identity(key_dim, key_dim)};
  for (Eigen::Index head = 0; WeighsByQueries(kind) && head < totals.n_kv_heads; ++head) {
    const Eigen::Map<const RowMajor> sum(totals.queries.data() + head * dim * dim, dim, dim);
    const Eigen::JacobiSVD<Matrix> svd(sum / static_cast<double>(totals.n_queries), Eigen::ComputeFullV);
    const Vector scales = svd.singularValues().cwiseMax(1e-4 * svd.singularValues()[0]).cwiseSqrt();
    const Matrix& v = svd.matrixV();
    weights.root.block(head * dim, head * dim, dim, dim) = v * scales.asDiagonal() * v.transpose();
    weights.inverse.block(head * dim, head * dim, dim, dim) =
        v * scales.cwiseInverse().asDiagonal() * v.transpose();
  }
  return weights;
}

Matrix Side(const std::vector<float>& values, const LayerAdapter& layer) {
  return Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
             values.data(), layer.key_dim, layer.rank)
      .cast<double>();
}

// The space of each first columns, where it is determined.
void ExpectSameSpaces(const Vector& values, const Matrix& expected, const Matrix& sides) {
  const Matrix identity = Matrix::Identity(sides.rows(), sides.cols());
  const Matrix ours = Eigen::HouseholderQR<Matrix>(sides).householderQ() * identity;
  const Matrix theirs = Eigen::HouseholderQR<Matrix>(expected).householderQ() * identity;
  int n_angles = 0;
  for (Eigen::Index i = 0; i < sides.cols(); ++i) {
    const double next = i + 1 < values.size() ? values[i + 1] : 0.0;
    if (values[i] - next <= 1e-3 * values[0]) continue;
    const Matrix basis = ours.leftCols(i + 1);
    const Matrix apart = theirs.leftCols(i + 1) - basis * (basis.transpose() * theirs.leftCols(i + 1));
    EXPECT_LT(std::asin(std::min(1.0, Eigen::JacobiSVD<Matrix>(apart).singularValues()[0])), 1e-3) << i;
    ++n_angles;
  }
  EXPECT_GT(n_angles, 2);
}

// `layer` is as the file has it, `exact` before it was rounded to f16.
void ExpectIsDecomposition(AdapterKind kind, const LayerTotals& totals, const LayerAdapter& layer,
                           const LayerAdapter& exact) {
  const auto key_dim = static_cast<Eigen::Index>(layer.key_dim);
  const auto n_keys = static_cast<double>(totals.n_keys);
  const Weights weights = WeightsOf(kind, totals);
  Matrix keys = Eigen::Map<const RowMajor>(totals.keys.data(), key_dim, key_dim) / n_keys;
  const Vector mean = Eigen::Map<const Vector>(totals.keys.data() + key_dim * key_dim, key_dim) / n_keys;
  if (TakesMeanOff(kind)) keys -= mean * mean.transpose();
  const Matrix weighted = weights.root * keys * weights.root;
  const Eigen::JacobiSVD<Matrix> svd((weighted + weighted.transpose()) / 2, Eigen::ComputeFullV);
  const Vector& values = svd.singularValues();
  const Matrix key_side = Side(layer.key_side, layer);
  for (Eigen::Index i = 0; i < layer.rank; ++i)
    EXPECT_NEAR(layer.energy[static_cast<size_t>(i)], values.head(i + 1).sum() / values.sum(), 1e-4) << i;
  ExpectSameSpaces(values, svd.matrixV(), weights.inverse * Side(exact.key_side, exact));
  // Rounded, what it spans with the weights taken off turns further, but keeps as much energy.
  if (!WeighsByQueries(kind)) ExpectSameSpaces(values, svd.matrixV(), key_side);
  const Matrix spanned = Eigen::HouseholderQR<Matrix>(weights.inverse * key_side).householderQ() *
                         Matrix::Identity(key_dim, layer.rank);
  double kept = 0;
  for (Eigen::Index i = 0; i < layer.rank; ++i) {
    kept += spanned.col(i).dot(weighted * spanned.col(i));
    EXPECT_NEAR(kept / weighted.trace(), values.head(i + 1).sum() / values.sum(), 1e-4) << i;
  }
  const Matrix product = key_side.transpose() * Side(layer.query_side, layer);
  EXPECT_LT((product - Matrix::Identity(layer.rank, layer.rank)).cwiseAbs().maxCoeff(),
            WeighsByQueries(kind) ? 1e-2 : 1e-3);
}

// At full rank, as f16 holds it: the bounds of docs/testing.md.
TEST_F(CalibrateSums, AdaptersAreWhatAnotherDecompositionMakesOfTheSums) {
  for (const AdapterKind kind : kKinds) {
    CalibrationOptions options = Options();
    options.kind = kind;
    options.sums_path = folder_.Path("sums");
    const Calibration made = OrDie(Calibrate(options, out_));
    const CalibrationSums sums = OrDie(ReadSums(options.sums_path));
    EXPECT_EQ(sums.n_pieces, 6U);
    EXPECT_EQ(sums.n_tokens, 1060U);
    EXPECT_EQ(sums.layers[0].n_keys, 1060U - 6 * kCalibrationSinks);
    const Adapter adapter =
        OrDie(ReadAdapter(out_, sums.fingerprint, config().n_layers, config().kv_dim(), config().kv_dim()));
    for (uint32_t i = 0; i < config().n_layers; ++i) {
      SCOPED_TRACE(std::string(AdapterKindName(kind)) + ", layer " + std::to_string(i));
      ExpectIsDecomposition(kind, sums.layers[i], adapter.layers[i], made.adapter.layers[i]);
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
