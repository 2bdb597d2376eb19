// docs/figures: the data of the pictures are of plans that kvrun still makes, and the pictures are drawn from
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/include/kvrun/kvrun.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using Json = nlohmann::json;

struct Figure {
  std::string name;
  std::string script;  // that draws it
  std::string measure;
};

std::vector<Figure> Figures() {
  return {
      {"depth", "scripts/draw-depth",
       "tests/bench/compare_at_depth --json docs/figures/depth.json --shape Llama-3.2-1B MODEL 0 8192 32768"},
      {"quality", "scripts/draw-quality",
       "scripts/measure-quality MODEL moby.ids docs/figures/quality.json"}};
}

std::string SourcePath(const std::string& file) { return std::string(KVRUN_SOURCE_DIR) + "/" + file; }
std::string DataOf(const Figure& figure) { return "docs/figures/" + figure.name + ".json"; }
std::string PictureOf(const Figure& figure) { return "docs/figures/" + figure.name + ".svg"; }

Json ReadData(const Figure& figure) { return Json::parse(ReadWholeFile(SourcePath(DataOf(figure)))); }

// Each with its shape, which a figure of one shape names once.
std::vector<Json> PointsOf(const Json& data) {
  std::vector<Json> points;
  for (Json point : data.is_array() ? data : data.at("points")) {
    if (data.is_object()) point["shape"] = data.at("shape");
    points.push_back(std::move(point));
  }
  return points;
}

// The line of `kvrun info --shape SHAPE -c CONTEXT CONFIG`, or why there is none.
std::string PlanLine(const std::string& shape, uint32_t context, const std::string& config) {
  std::istringstream stream(config);
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  const std::string prefix = "--kv-";
  std::vector<kvrun_option> kv;
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    if (words[i].rfind(prefix, 0) != 0) return words[i] + " is no option of the KV cache";
    kv.push_back({words[i].c_str() + prefix.size(), words[i + 1].c_str()});
  }
  const auto names_group = [](const kvrun_option& option) { return std::string(option.name) == "group"; };
  if (std::none_of(kv.begin(), kv.end(), names_group)) return "without --kv-group it depends on the disk";
  kvrun_session_options options;
  kvrun_session_options_init(&options);
  options.n_ctx = context;
  options.kv_options = kv.data();
  options.n_kv_options = kv.size();
  kvrun_model* made = nullptr;
  if (kvrun_model_make(shape.c_str(), 0, &made) != KVRUN_OK) return kvrun_last_error();
  const std::unique_ptr<kvrun_model, decltype(&kvrun_model_close)> model(made, kvrun_model_close);
  char* text = nullptr;
  if (kvrun_kv_plan_json(model.get(), &options, &text) != KVRUN_OK) return kvrun_last_error();
  const std::unique_ptr<char, decltype(&kvrun_string_free)> plan(text, kvrun_string_free);
  return Json::parse(plan.get()).at("line");
}

// What to say of each point whose plan is no longer what kvrun makes.
std::vector<std::string> Outdated(const Figure& figure, const Json& data) {
  std::vector<std::string> out;
  for (const Json& point : PointsOf(data)) {
    const std::string config = point.at("config"), measured = point.value("plan", "no plan is named");
    const std::string shape = point.value("shape", "no shape");
    const uint32_t context = point.value("context", 0U);
    const std::string now = PlanLine(shape, context, config);
    if (now == measured) continue;
    out.push_back(DataOf(figure) + ": the point " + shape + " -c " + std::to_string(context) + " " + config +
                  " is of a plan that kvrun no longer makes.\n  measured: " + measured + "\n  today:    " +
                  now + "\nMeasure again, draw, and mend the text beside the picture:\n  " + figure.measure +
                  "\n  " + figure.script + " " + DataOf(figure) + " " + PictureOf(figure));
  }
  return out;
}

TEST(Figures, AllAreKnown) {
  const std::vector<Figure> figures = Figures();
  for (const auto& entry : std::filesystem::directory_iterator(SourcePath("docs/figures"))) {
    const std::string stem = entry.path().stem().string();
    const auto is_it = [&](const Figure& figure) { return figure.name == stem; };
    EXPECT_TRUE(std::any_of(figures.begin(), figures.end(), is_it))
        << entry.path() << ": tests/unit/figures_test.cc does not say how it is measured and drawn";
  }
}

TEST(Figures, ShowWhatKvrunPlansToday) {
  for (const Figure& figure : Figures()) {
    const Json data = ReadData(figure);
    EXPECT_FALSE(PointsOf(data).empty()) << DataOf(figure);
    for (const std::string& words : Outdated(figure, data)) ADD_FAILURE() << words;
  }
}

TEST(Figures, APlanThatIsNoLongerMadeIsNamed) {
  const std::string config = "--kv-budget 1/13 --kv-group 4";
  const std::string line = PlanLine("SmolLM2-135M", 8080, config);
  const std::string other = line.substr(0, line.find("entries")) + "more entries";
  const Json points = {{{"config", config}, {"context", 8080}, {"plan", line}},
                       {{"config", config}, {"context", 8080}, {"plan", other}}};
  const Figure figure = Figures().front();
  const std::vector<std::string> found = Outdated(figure, {{"shape", "SmolLM2-135M"}, {"points", points}});
  ASSERT_EQ(found.size(), 1U);
  for (const std::string& part : {DataOf(figure), config, line, other, figure.measure, figure.script}) {
    EXPECT_NE(found[0].find(part), std::string::npos) << found[0];
  }
}

class DrawnFigures : public ::testing::Test {
 protected:
  void SetUp() override {
    if (RunProgram("/usr/bin/env", {"python3", "-c", ""}).exit_code != 0) GTEST_SKIP() << "no python3";
  }
  std::string Draw(const std::string& script, const std::string& data) const {
    const std::string picture = folder_.Path("picture.svg");
    const ProgramResult result = RunProgram("/usr/bin/env", {"python3", SourcePath(script), data, picture});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return ReadWholeFile(picture);
  }

  TemporaryFolder folder_;
};

TEST_F(DrawnFigures, AreOfTheirData) {
  for (const Figure& figure : Figures()) {
    EXPECT_EQ(Draw(figure.script, SourcePath(DataOf(figure))), ReadWholeFile(SourcePath(PictureOf(figure))))
        << figure.script << " " << DataOf(figure) << " " << PictureOf(figure);
  }
}

// They are over what is read, in each of the three rows.
TEST_F(DrawnFigures, PointsOfOneMemoryAreNotJoined) {
  Json points = Json::array();
  for (const double read_mb : {1.0, 10.0}) {
    points.push_back({{"kl_mean", 0.1 / read_mb},
                      {"top1_agreement", 0.9},
                      {"ppl", 20.0 + read_mb},
                      {"ppl_full", 20.0},
                      {"kv", {{"decode_bytes", 13631488 + read_mb}, {"read_bytes", read_mb * 4e8}}}});
  }
  const auto lines = [&] {
    const std::string picture = Draw("scripts/draw-quality", folder_.Write("points.json", points.dump()));
    size_t n = 0;
    for (size_t at = picture.find("<polyline"); at != picture.npos; at = picture.find("<polyline", at + 1))
      ++n;
    return n;
  };
  EXPECT_EQ(lines(), 3U);
  points[1]["kv"]["decode_bytes"] = 5242880;
  EXPECT_EQ(lines(), 6U);
}

}  // namespace
}  // namespace kvrun
