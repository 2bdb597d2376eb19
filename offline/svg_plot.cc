#include "offline/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace kvrun::offline {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 420;
constexpr double kLeft = 72;
constexpr double kRight = 470;  // the legend is beyond it
constexpr double kTop = 36;
constexpr double kBottom = 370;
constexpr double kLegendLine = 17;
constexpr size_t kMaxLegendLines = 20;
constexpr size_t kMaxNameBytes = 24;  // of a legend's line
constexpr double kLargest = 1e100;    // what is beyond it is not shown: sums of it would not stay finite
constexpr double kMaxTicks = 8;

// Told apart by eyes that see few colours, and on white (Okabe and Ito, 2008); then dashed.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#000000", "#8c6d1f"};
constexpr std::array<const char*, 3> kDashes = {"", " stroke-dasharray=\"6 3\"", " stroke-dasharray=\"2 3\""};

// Of a character that begins at `text`, by its first byte; 0 if it is none of UTF-8's.
size_t CharacterBytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return 1;
  const size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || n > text.size()) return 0;
  uint32_t code = first & (0x7fU >> n);
  for (size_t i = 1; i < n; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0U) != 0x80) return 0;
    code = code << 6 | (next & 0x3fU);
  }
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_character = code >= kLeast[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) &&
                            code != 0xfffe && code != 0xffff;
  return is_character ? n : 0;
}

// What XML cannot hold is a question mark.
std::string Escape(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const size_t n = CharacterBytes(text);
    const char c = text.front();
    if (n == 0 || (n == 1 && static_cast<unsigned char>(c) < 0x20)) {
      escaped += '?';
    } else if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else {
      escaped += text.substr(0, n);
    }
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  return escaped;
}

std::string Shortened(const std::string& name) {
  if (name.size() <= kMaxNameBytes) return name;
  size_t end = kMaxNameBytes - 2;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0U) == 0x80) --end;
  return name.substr(0, end) + "..";
}

// "0.25", "1500", "25k", "1.5M", "2e-07"; on axes of powers of two "64Ki".
std::string NumberText(double value, Scale scale) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  const double thousand = scale == Scale::kLog2 ? 1024 : 1000;
  const char* const prefixes = scale == Scale::kLog2 ? "KMGT" : "kMGT";
  if (size >= (scale == Scale::kLog2 ? 1024 : 10000) && size < std::pow(thousand, 5)) {
    int power = 0;
    double shown = value;
    while (power < 4 && std::abs(shown) >= thousand) {
      shown /= thousand;
      ++power;
    }
    return fmt::format("{:.6g}{}{}", shown, prefixes[power - 1], scale == Scale::kLog2 ? "i" : "");
  }
  return fmt::format("{:.6g}", value);
}

double Log(double value, Scale scale) { return scale == Scale::kLog2 ? std::log2(value) : std::log10(value); }

bool CanShow(double value, Scale scale) {
  return std::abs(value) <= kLargest && (scale == Scale::kLinear || value >= 1 / kLargest);
}

// What an axis shows, and where its ticks are, in its own values.
struct Range {
  Scale scale = Scale::kLinear;
  double begin = 0;
  double end = 1;
  std::vector<double> ticks = {};

  // 0 to 1 along the axis.
  double Place(double value) const {
    if (scale == Scale::kLinear) return (value - begin) / (end - begin);
    return (Log(value, scale) - Log(begin, scale)) / (Log(end, scale) - Log(begin, scale));
  }
};

// 1, 2 or 5 times a power of ten.
double NiceStep(double at_least) {
  const double power = std::pow(10.0, std::floor(std::log10(at_least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= at_least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// From zero where that does not press everything together.
Range LinearRange(double least, double most) {
  if (least >= 0 && least <= most / 2) least = 0;
  if (most <= 0 && most >= least / 2) most = 0;
  const double size = std::max(std::abs(least), std::abs(most));
  if (most - least <= size * 1e-9) {
    const double room = size == 0 ? 1 : size / 10;
    least -= room;
    most += room;
  }
  const double step = NiceStep((most - least) / (kMaxTicks - 2));
  const double first = std::floor(least / step + 1e-9);
  const double last = std::ceil(most / step - 1e-9);
  Range range{.scale = Scale::kLinear, .begin = first * step, .end = last * step};
  for (double i = first; i <= last; ++i) range.ticks.push_back(i * step);
  return range;
}

Range LogRange(double least, double most, Scale scale) {
  double first = std::floor(Log(least, scale) + 1e-9);
  double last = std::ceil(Log(most, scale) - 1e-9);
  if (first == last) {
    first -= 1;
    last += 1;
  }
  const double base = scale == Scale::kLog2 ? 2 : 10;
  const double stride = std::ceil((last - first) / kMaxTicks);
  Range range{.scale = scale, .begin = std::pow(base, first), .end = std::pow(base, last)};
  for (double i = first; i <= last; i += stride) {
    range.ticks.push_back(std::pow(base, i));
    if (scale != Scale::kLog10 || last - first > 2 || i == last) continue;
    for (const double factor : {2.0, 5.0}) range.ticks.push_back(factor * std::pow(base, i));
  }
  return range;
}

// Of the points that both axes can show.
class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {
    double least_x = std::numeric_limits<double>::infinity();
    double least_y = least_x;
    double most_x = -least_x;
    double most_y = -least_x;
    for (const PlotSeries& series : plot.series) {
      for (const auto& point : series.points) {
        if (!Shows(point)) continue;
        ++n_points_;
        least_x = std::min(least_x, point.first);
        most_x = std::max(most_x, point.first);
        least_y = std::min(least_y, point.second);
        most_y = std::max(most_y, point.second);
      }
    }
    if (n_points_ == 0) return;
    x_ = RangeOf(least_x, most_x, plot.x.scale);
    y_ = RangeOf(least_y, most_y, plot.y.scale);
  }

  std::string Text() const;

 private:
  static Range RangeOf(double least, double most, Scale scale) {
    return scale == Scale::kLinear ? LinearRange(least, most) : LogRange(least, most, scale);
  }
  bool Shows(const std::pair<double, double>& point) const {
    return CanShow(point.first, plot_.x.scale) && CanShow(point.second, plot_.y.scale);
  }
  double X(double value) const { return kLeft + x_.Place(value) * (kRight - kLeft); }
  double Y(double value) const { return kBottom - y_.Place(value) * (kBottom - kTop); }

  std::string Axes() const;
  std::string Series(const PlotSeries& series, size_t index) const;
  std::string Legend() const;

  const Plot& plot_;
  size_t n_points_ = 0;
  Range x_;
  Range y_;
};

std::string Label(double x, double y, const char* anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     Escape(text));
}

std::string Line(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1,
                     y1, x2, y2, colour);
}

std::string Drawing::Axes() const {
  std::string text;
  for (const double tick : x_.ticks) {
    text += Line(X(tick), kTop, X(tick), kBottom, "#e0e0e0");
    text += Label(X(tick), kBottom + 17, "middle", NumberText(tick, x_.scale));
  }
  for (const double tick : y_.ticks) {
    text += Line(kLeft, Y(tick), kRight, Y(tick), "#e0e0e0");
    text += Label(kLeft - 6, Y(tick) + 4, "end", NumberText(tick, y_.scale));
  }
  text += Line(kLeft, kBottom, kRight, kBottom, "#404040");
  text += Line(kLeft, kTop, kLeft, kBottom, "#404040");
  text += Label((kLeft + kRight) / 2, kHeight - 12, "middle", plot_.x.label);
  text +=
      fmt::format("<text transform=\"translate(16,{:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                  (kTop + kBottom) / 2, Escape(plot_.y.label));
  return text;
}

std::string Drawing::Series(const PlotSeries& series, size_t index) const {
  const char* const colour = kColours[index % kColours.size()];
  std::string line;
  std::string dots;
  for (const auto& point : series.points) {
    if (!Shows(point)) continue;
    const double x = X(point.first);
    const double y = Y(point.second);
    line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", x, y);
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, colour);
  }
  if (!series.is_line || line.empty()) return dots;
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"{}/>\n", line,
                     colour, kDashes[index / kColours.size() % kDashes.size()]) +
         dots;
}

std::string Drawing::Legend() const {
  std::string text;
  const size_t n_shown = plot_.series.size() <= kMaxLegendLines ? plot_.series.size() : kMaxLegendLines - 1;
  for (size_t i = 0; i < n_shown; ++i) {
    const double y = kTop + 6 + kLegendLine * static_cast<double>(i);
    const char* const colour = kColours[i % kColours.size()];
    if (plot_.series[i].is_line) {
      text += fmt::format(
          "<polyline points=\"{0:.1f},{1:.1f} {2:.1f},{1:.1f}\" fill=\"none\" stroke=\"{3}\" "
          "stroke-width=\"1.5\"{4}/>\n",
          kRight + 10, y, kRight + 26, colour, kDashes[i / kColours.size() % kDashes.size()]);
    } else {
      text += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"6\" height=\"6\" fill=\"{}\"/>\n",
                          kRight + 15, y - 3, colour);
    }
    text += Label(kRight + 31, y + 4, "start", Shortened(plot_.series[i].name));
  }
  if (n_shown < plot_.series.size()) {
    text += Label(kRight + 31, kTop + 10 + kLegendLine * static_cast<double>(n_shown), "start",
                  fmt::format("and {} more", plot_.series.size() - n_shown));
  }
  return text;
}

std::string Drawing::Text() const {
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#202020\">\n<desc>drawn by "
      "kvrun</desc>\n<title>{2}</title>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"{3:.1f}\" y=\"22\" text-anchor=\"middle\" font-size=\"14\">{2}</text>\n",
      kWidth, kHeight, Escape(plot_.title), kWidth / 2);
  if (n_points_ == 0) {
    text += Label(kWidth / 2, kHeight / 2, "middle", "there are no points to show");
  } else {
    text += Axes();
    for (size_t i = 0; i < plot_.series.size(); ++i) text += Series(plot_.series[i], i);
    text += Legend();
  }
  return text + "</svg>\n";
}

}  // namespace

std::string SvgText(const Plot& plot) { return Drawing(plot).Text(); }

}  // namespace kvrun::offline
