// strftime_now: the time as a template wants it, in English.
#include <cstdio>
#include <ctime>

#include "runtime/jinja/functions.h"

namespace kvrun::jinja {
namespace {

constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                 "Thursday", "Friday", "Saturday"};
constexpr const char* kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                   "July",    "August",   "September", "October", "November", "December"};

std::string TimeDigits(int number, int width, char fill = '0') {
  std::string digits = std::to_string(number);
  while (static_cast<int>(digits.size()) < width) digits.insert(digits.begin(), fill);
  return digits;
}

int Hour12(const std::tm& time) { return time.tm_hour % 12 == 0 ? 12 : time.tm_hour % 12; }

// Weeks of ISO 8601 begin on Monday; the first one holds January 4.
int IsoWeek(const std::tm& time, int* year) {
  const int monday_first = (time.tm_wday + 6) % 7;
  const auto weeks_of = [](int of_year) {
    const auto ends_on = [](int y) { return (y + y / 4 - y / 100 + y / 400) % 7; };
    return ends_on(of_year) == 4 || ends_on(of_year - 1) == 3 ? 53 : 52;
  };
  *year = time.tm_year + 1900;
  const int week = (time.tm_yday - monday_first + 10) / 7;
  if (week < 1) return weeks_of(--*year);
  if (week > weeks_of(*year)) return ++*year, 1;
  return week;
}

// Nothing where the letter is not known.
std::string Part(const std::tm& time, char letter) {
  int iso_year = 0;
  switch (letter) {
    case 'a': return std::string(kDays[time.tm_wday]).substr(0, 3);
    case 'A': return kDays[time.tm_wday];
    case 'b':
    case 'h': return std::string(kMonths[time.tm_mon]).substr(0, 3);
    case 'B': return kMonths[time.tm_mon];
    case 'C': return TimeDigits((time.tm_year + 1900) / 100, 2);
    case 'd': return TimeDigits(time.tm_mday, 2);
    case 'e': return TimeDigits(time.tm_mday, 2, ' ');
    case 'f': return "000000";
    case 'G': return IsoWeek(time, &iso_year), std::to_string(iso_year);
    case 'H': return TimeDigits(time.tm_hour, 2);
    case 'I': return TimeDigits(Hour12(time), 2);
    case 'j': return TimeDigits(time.tm_yday + 1, 3);
    case 'k': return TimeDigits(time.tm_hour, 2, ' ');
    case 'l': return TimeDigits(Hour12(time), 2, ' ');
    case 'm': return TimeDigits(time.tm_mon + 1, 2);
    case 'M': return TimeDigits(time.tm_min, 2);
    case 'n': return "\n";
    case 'p': return time.tm_hour < 12 ? "AM" : "PM";
    case 'P': return time.tm_hour < 12 ? "am" : "pm";
    case 'S': return TimeDigits(time.tm_sec, 2);
    case 't': return "\t";
    case 'u': return std::to_string(time.tm_wday == 0 ? 7 : time.tm_wday);
    case 'U': return TimeDigits((time.tm_yday + 7 - time.tm_wday) / 7, 2);
    case 'V': return TimeDigits(IsoWeek(time, &iso_year), 2);
    case 'w': return std::to_string(time.tm_wday);
    case 'W': return TimeDigits((time.tm_yday + 7 - (time.tm_wday + 6) % 7) / 7, 2);
    case 'y': return TimeDigits(time.tm_year % 100, 2);
    case 'Y': return std::to_string(time.tm_year + 1900);
    case '%': return "%";
    default: return "";
  }
}

std::string WithoutPadding(std::string text) {
  const size_t first = text.find_first_not_of("0 ");
  return text.substr(first == text.npos ? text.size() - 1 : first);
}

// Letters that stand for several parts.
const char* PartsOf(char letter) {
  switch (letter) {
    case 'c': return "%a %b %e %H:%M:%S %Y";
    case 'D':
    case 'x': return "%m/%d/%y";
    case 'F': return "%Y-%m-%d";
    case 'r': return "%I:%M:%S %p";
    case 'R': return "%H:%M";
    case 'T':
    case 'X': return "%H:%M:%S";
    default: return nullptr;
  }
}

void AppendTime(const std::tm& time, const MarkedText& format, MarkedText* text) {
  const std::string_view bytes = format.bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool is_content = format.IsContent(i);
    if (bytes[i] != '%' || i + 1 == bytes.size()) {
      text->Append(bytes.substr(i, 1), is_content);
      continue;
    }
    const size_t begin = i++;
    const bool no_padding = bytes[i] == '-' && i + 1 < bytes.size();
    if (no_padding) ++i;
    const char letter = bytes[i];
    if (const char* const parts = PartsOf(letter); parts != nullptr) {
      AppendTime(time, MarkedText(parts, is_content), text);
      continue;
    }
    std::string part = letter == 'Z' || letter == 'z' ? "" : Part(time, letter);
    if (no_padding && !part.empty()) part = WithoutPadding(std::move(part));
    if (part.empty() && letter != 'Z' && letter != 'z') {
      text->Append(format, begin, i + 1);
    } else {
      text->Append(part, is_content);
    }
  }
}

}  // namespace

Result<Value> FormattedTime(Run& run, const MarkedText& format) {
  KVRUN_RETURN_IF_ERROR(run.Take(format.size() * 24));
  const std::time_t now = run.now() != 0 ? run.now() : std::time(nullptr);
  std::tm time{};
  if (localtime_r(&now, &time) == nullptr) return Wrong("the time is not known");
  MarkedText text;
  AppendTime(time, format, &text);
  return run.MakeString(std::move(text));
}

}  // namespace kvrun::jinja
