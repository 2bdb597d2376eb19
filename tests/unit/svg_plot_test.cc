#include "offline/svg_plot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace kvrun::offline {
namespace {

// Why a text is no well-formed XML of elements, attributes and text; empty if it is.
std::string Flaw(const std::string& text) {
  static const std::regex tag(R"(<(/?)([a-z]+)((?: [a-zA-Z0-9:-]+="[^"<]*")*)(/?)>)");
  std::vector<std::string> open;
  std::string bare;  // without tags
  size_t end = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), tag); it != std::sregex_iterator(); ++it) {
    const std::smatch& match = *it;
    bare += text.substr(end, static_cast<size_t>(match.position()) - end) + match.str(3);
    end = static_cast<size_t>(match.position() + match.length());
    if (match.length(1) > 0) {
      if (open.empty() || open.back() != match.str(2)) return "closes what is not open: " + match.str();
      open.pop_back();
    } else if (match.length(4) == 0) {
      open.push_back(match.str(2));
    }
  }
  bare += text.substr(end);
  if (!open.empty()) return "not closed: " + open.back();
  if (bare.find_first_of("<>") != std::string::npos) return "a bracket that is no tag: " + bare;
  if (std::regex_search(bare, std::regex("&(?!(amp|lt|gt|quot);)"))) return "a bare ampersand";
  for (const char c : bare) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') return "a control character";
  }
  return "";
}

std::vector<std::pair<double, double>> Circles(const std::string& text) {
  static const std::regex circle("<circle cx=\"([0-9.-]+)\" cy=\"([0-9.-]+)\"");
  std::vector<std::pair<double, double>> circles;
  for (std::sregex_iterator it(text.begin(), text.end(), circle); it != std::sregex_iterator(); ++it) {
    circles.emplace_back(std::stod(it->str(1)), std::stod(it->str(2)));
  }
  return circles;
}

std::vector<std::string> Texts(const std::string& text) {
  static const std::regex element("<text [^>]*>([^<]*)</text>");
  std::vector<std::string> texts;
  for (std::sregex_iterator it(text.begin(), text.end(), element); it != std::sregex_iterator(); ++it) {
    texts.push_back(it->str(1));
  }
  return texts;
}

bool Says(const std::string& text, const std::string& what) {
  const std::vector<std::string> texts = Texts(text);
  return std::find(texts.begin(), texts.end(), what) != texts.end();
}

using Points = std::vector<std::pair<double, double>>;

Plot PlotOf(const Points& points, Scale x = Scale::kLinear, Scale y = Scale::kLinear) {
  return {.title = "a title",
          .x = {.label = "along", .scale = x},
          .y = {.label = "up", .scale = y},
          .series = {{.name = "one", .points = points}}};
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(SvgPlot, FlawsAreSeenByThisTest) {
  for (const char* text : {"<a>", "<a></b>", "<a>&x</a>", "<a b=c/>", "<a>x < y</a>", "<a>\x01</a>"}) {
    EXPECT_NE(Flaw(text), "") << text;
  }
  EXPECT_EQ(Flaw("<svg a=\"b\"><line x1=\"1\"/>x &lt; y</svg>\n"), "");
}

TEST(SvgPlot, PointsAreWhereTheyShouldBe) {
  // The corners are at 72, 470 and 370, 36.
  const std::string linear = SvgText(PlotOf({{0, 0}, {5, 50}, {10, 100}}));
  EXPECT_EQ(Flaw(linear), "");
  EXPECT_EQ(Circles(linear), (Points{{72, 370}, {271, 203}, {470, 36}}));
  EXPECT_PRED2(Says, linear, "20");
  EXPECT_PRED2(Says, linear, "100");
  const std::string log2 = SvgText(PlotOf({{512, 1}, {4096, 10}, {32768, 100}}, Scale::kLog2, Scale::kLog10));
  EXPECT_EQ(Circles(log2), (Points{{72, 370}, {271, 203}, {470, 36}}));
  for (const char* tick : {"512", "1Ki", "32Ki", "1", "10", "100", "along", "up", "one", "a title"}) {
    EXPECT_PRED2(Says, log2, tick);
  }
  EXPECT_NE(log2.find("<polyline points=\"72.0,370.0 271.0,203.0 470.0,36.0\""), std::string::npos);
}

TEST(SvgPlot, AnAxisBeginsAtZeroUnlessThatHidesWhatItShows) {
  EXPECT_PRED2(Says, SvgText(PlotOf({{0, 40}, {1, 100}})), "0");
  const std::string close = SvgText(PlotOf({{0, 95}, {1, 100}}));
  EXPECT_EQ(Circles(close), (Points{{72, 370}, {470, 36}}));
  EXPECT_PRED2(Says, SvgText(PlotOf({{0, -40}, {1, -100}})), "-100");
}

TEST(SvgPlot, WhatCannotBeShownIsLeftOut) {
  const std::string text = SvgText(PlotOf({{1, 1}, {kNan, 2}, {3, kInfinity}, {-kInfinity, 2}, {2, 2}}));
  EXPECT_EQ(Flaw(text), "");
  EXPECT_EQ(Circles(text).size(), 2U);
  const std::string log = SvgText(PlotOf({{0, 1}, {1, 0}, {-1, 1}, {2, 2}}, Scale::kLog2, Scale::kLog10));
  EXPECT_EQ(Circles(log).size(), 1U);
  EXPECT_EQ(Circles(SvgText(PlotOf({{0, 0}, {1, 1e308}, {1, -1e308}}))).size(), 1U);
}

TEST(SvgPlot, WithoutPointsItSaysSo) {
  for (const Plot& plot : {Plot{}, PlotOf({}), PlotOf({{kNan, 1}}), PlotOf({{0, 1}}, Scale::kLog2)}) {
    const std::string text = SvgText(plot);
    EXPECT_EQ(Flaw(text), "");
    EXPECT_PRED2(Says, text, "there are no points to show");
    EXPECT_TRUE(Circles(text).empty());
  }
}

TEST(SvgPlot, OnePointAndHugeRangesHaveAxesToo) {
  for (const Scale scale : {Scale::kLinear, Scale::kLog2, Scale::kLog10}) {
    for (const Points& points : {Points{{7, 7}}, Points{{1e-99, 1e-99}, {1e99, 1e99}}, Points{{1, 3}, {1, 3}},
                                 Points{{1, 1}, {1 + 1e-13, 1 + 1e-13}}, Points{{0, 0}, {16, 16}}}) {
      const std::string text = SvgText(PlotOf(points, scale, scale));
      EXPECT_EQ(Flaw(text), "");
      EXPECT_FALSE(Circles(text).empty());
      for (const auto& [x, y] : Circles(text)) {
        EXPECT_TRUE(x >= 72 && x <= 470 && y >= 36 && y <= 370) << x << ", " << y;
      }
      EXPECT_LE(Texts(text).size(), 30U);
      EXPECT_EQ(text.find("nan"), std::string::npos);
      EXPECT_EQ(text.find("inf"), std::string::npos);
    }
  }
}

TEST(SvgPlot, NamesCannotBreakIt) {
  Plot plot = PlotOf({{1, 1}, {2, 2}});
  plot.title = "a < b & \"c\" > d";
  plot.x.label = std::string("x\x01\xff\xc3") + "\xc3\xa9";
  plot.series[0].name = "</svg><script>alert(1)</script>";
  const std::string text = SvgText(plot);
  EXPECT_EQ(Flaw(text), "");
  EXPECT_PRED2(Says, text, "a &lt; b &amp; &quot;c&quot; &gt; d");
  EXPECT_PRED2(Says, text, "x???\xc3\xa9");
  EXPECT_EQ(text.find("<script"), std::string::npos);
}

TEST(SvgPlot, ManySeriesHaveOneLegend) {
  Plot plot = PlotOf({{1, 1}});
  for (int i = 0; i < 40; ++i) {
    plot.series.push_back({.name = std::to_string(i), .points = {{1, i}}, .is_line = i % 2 == 0});
  }
  plot.series[0].name = "a name that is much longer than the legend is wide";
  const std::string text = SvgText(plot);
  EXPECT_EQ(Flaw(text), "");
  EXPECT_PRED2(Says, text, "and 22 more");
  EXPECT_PRED2(Says, text, "a name that is much lo..");
  EXPECT_EQ(text, SvgText(plot));
}

}  // namespace
}  // namespace kvrun::offline
