// Models that are split into several files: found by any part, and what is wrong with parts.
#include "runtime/model/gguf_split.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/model/model.h"
#include "tests/support/or_die.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun {
namespace {

namespace fs = std::filesystem;
using testing::GgufBuilder;
using testing::OrDie;
using testing::TinyModel;
using testing::WriteModel;

constexpr uint16_t kParts = 3;

class GgufSplit : public ::testing::Test {
 protected:
  static std::string Name(uint32_t part, uint32_t count = kParts) {
    return fmt::format("tiny-{:05}-of-{:05}.gguf", part + 1, count);
  }
  std::string Path(uint32_t part) const { return folder_.Path(Name(part)); }
  void Write(const std::vector<GgufBuilder>& parts) const {
    for (uint32_t i = 0; i < parts.size(); ++i) WriteModel(folder_, Name(i), parts[i].Build());
  }
  void ExpectRefused(StatusCode code, const std::string& message, uint32_t part = 0) const {
    const Status status = OpenModelFile(Path(part)).status();
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), message);
  }

  TemporaryFolder folder_;
  std::vector<GgufBuilder> parts_ = TinyModel().Split(kParts, 4);
};

TEST_F(GgufSplit, IsTheModelByWhicheverPart) {
  const std::string whole_path = WriteModel(folder_, "whole.gguf", TinyModel().Build());
  const auto whole = OrDie(OpenModel(whole_path));
  for (const size_t n_in_first : {0U, 4U}) {
    Write(TinyModel().Split(kParts, n_in_first));
    for (uint32_t part = 0; part < kParts; ++part) {
      const auto split = OrDie(OpenModel(Path(part)));
      EXPECT_EQ(OrDie(split->Fingerprint()), OrDie(whole->Fingerprint()));
      ASSERT_EQ(split->file->tensors().size(), whole->file->tensors().size());
      for (const GgufTensor& tensor : whole->file->tensors()) {
        const GgufTensor* other = split->file->FindTensor(tensor.name);
        ASSERT_NE(other, nullptr);
        EXPECT_EQ(OrDie(split->file->ReadAll(*other)), OrDie(whole->file->ReadAll(tensor)));
      }
      EXPECT_EQ(split->file->paths(), (std::vector<std::string>{Path(0), Path(1), Path(2)}));
      EXPECT_EQ(split->file->size_bytes(),
                fs::file_size(Path(0)) + fs::file_size(Path(1)) + fs::file_size(Path(2)));
      EXPECT_TRUE(split->file->HasName(Path(2)));
      EXPECT_FALSE(split->file->HasName(whole_path));
    }
  }
}

TEST_F(GgufSplit, AMissingPartIsNamed) {
  Write(parts_);
  fs::remove(Path(1));
  ExpectRefused(
      StatusCode::kNotFound,
      Path(1) + ": the model is split into 3 files, and this one is missing: put it beside the others");
  ExpectRefused(
      StatusCode::kNotFound,
      Path(1) + ": the model is split into 3 files, and this one is missing: put it beside the others", 2);
}

TEST_F(GgufSplit, APartThatIsThereTwiceIsNamed) {
  Write({parts_[0], parts_[1], parts_[1]});
  ExpectRefused(StatusCode::kCorrupt, Path(2) +
                                          ": by its name it is part 3 of 3, but by its content it is part 2 "
                                          "of 3: put the model's own part there");
}

TEST_F(GgufSplit, PartsOfOtherModelsAreNamed) {
  testing::TinyModelOptions larger;
  larger.n_layers = 3;
  Write({parts_[0], TinyModel(larger).Split(kParts, 4)[1], parts_[2]});
  ExpectRefused(StatusCode::kCorrupt,
                fmt::format("{}: by its name it is part 2 of 3, but by its content it is part of a model of "
                            "30 tensors, not of 21: put the model's own part there",
                            Path(1)));
  // As many tensors, but others of them in the part.
  Write({parts_[0], parts_[1], TinyModel().Split(kParts, 5)[2]});
  const Status shifted = OpenModelFile(Path(0)).status();
  EXPECT_EQ(shifted.code(), StatusCode::kCorrupt);
  EXPECT_NE(shifted.message().find("the files are not of one model"), std::string::npos) << shifted.message();
  Write(parts_);
  WriteModel(folder_, Name(1), TinyModel().Split(4, 4)[1].Build());
  ExpectRefused(StatusCode::kCorrupt, Path(1) +
                                          ": by its name it is part 2 of 3, but by its content it is part 2 "
                                          "of 4: put the model's own part there");
  GgufBuilder other = parts_[1];
  Write({parts_[0], other.Set("general.architecture", "qwen2"), parts_[2]});
  ExpectRefused(
      StatusCode::kCorrupt,
      fmt::format("{}: it is a part of another model than {}: put the part that belongs to it there", Path(1),
                  Path(0)));
}

TEST_F(GgufSplit, ATensorThatLacksIsCounted) {
  std::vector<GgufBuilder> parts = TinyModel().EraseTensor("output_norm.weight").Split(kParts, 4);
  for (GgufBuilder& part : parts) part.Set("split.tensors.count", int32_t{21});
  Write(parts);
  ExpectRefused(
      StatusCode::kCorrupt,
      Path(0) +
          ": the 3 parts of the model hold 20 tensors, and should hold 21: one of them is of another "
          "model or damaged");
}

TEST_F(GgufSplit, PartsAreFoundByTheirNames) {
  Write(parts_);
  const std::string renamed = folder_.Path("renamed.gguf");
  fs::rename(Path(1), renamed);
  EXPECT_EQ(
      OpenModelFile(renamed).status().message(),
      renamed +
          ": it is part 2 of 3 of a split model, whose parts are found by their names: rename it so that "
          "it ends in -00002-of-00003.gguf, and the others likewise");
}

TEST_F(GgufSplit, AnAloneFileMaySayThatItIsOneOfOne) {
  GgufBuilder model = TinyModel();
  model.Set("split.no", uint16_t{0}).Set("split.count", uint16_t{1});
  EXPECT_TRUE(OpenModelFile(WriteModel(folder_, "whole.gguf", model.Build())).ok());
}

TEST_F(GgufSplit, HostileKeysAreRefused) {
  const auto refused = [&](const std::function<void(GgufBuilder&)>& damage) {
    GgufBuilder part = parts_[0];
    damage(part);
    WriteModel(folder_, Name(0), part.Build());
    const Status status = OpenModelFile(Path(0)).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.message();
    EXPECT_EQ(status.message().find(Path(0)), 0U) << status.message();
  };
  Write(parts_);
  refused([](GgufBuilder& part) { part.Set("split.count", uint16_t{0}); });
  refused([](GgufBuilder& part) { part.Set("split.no", uint16_t{3}); });
  refused([](GgufBuilder& part) { part.Set("split.no", int32_t{-1}); });
  refused([](GgufBuilder& part) { part.Set("split.count", "three"); });
  refused([](GgufBuilder& part) { part.Set("split.count", uint64_t{1} << 40); });
  refused([](GgufBuilder& part) { part.Set("split.count", uint32_t{4000000000U}); });
  refused([](GgufBuilder& part) { part.Set("split.tensors.count", int32_t{-5}); });
}

// Each part cut at many places: one clear refusal, that names it.
TEST_F(GgufSplit, CutPartsAreNamed) {
  Write(parts_);
  for (uint32_t part = 0; part < kParts; ++part) {
    const std::string whole = ReadWholeFile(Path(part));
    for (size_t size = 0; size < whole.size(); size += 97) {
      folder_.Write(Name(part), whole.substr(0, size));
      const Status status = OpenModelFile(Path(0)).status();
      EXPECT_EQ(status.code(), StatusCode::kCorrupt) << size;
      EXPECT_EQ(status.message().find(Path(part)), 0U) << status.message();
    }
    folder_.Write(Name(part), whole);
  }
  EXPECT_TRUE(OpenModelFile(Path(0)).ok());
}

}  // namespace
}  // namespace kvrun
