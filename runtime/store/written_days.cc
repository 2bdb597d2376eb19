#include "runtime/store/written_days.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <optional>

#include "platform/base/saturating.h"

namespace kvrun {
namespace {

constexpr int64_t kSecondsOfDay = 24 * 60 * 60;
constexpr std::string_view kTextBegins = "kvrun written 1\n";

// "123\n" at the text's begin, which it is cut off.
std::optional<uint64_t> TakeNumber(std::string_view* text, char end) {
  uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  const auto n = static_cast<size_t>(rest - text->data());
  if (error != std::errc() || n == text->size() || (*text)[n] != end) return std::nullopt;
  text->remove_prefix(n + 1);
  return value;
}

}  // namespace

void WrittenDays::Add(uint32_t day, uint64_t bytes) {
  if (bytes == 0) return;
  total_bytes_ = SaturatingSum({total_bytes_, bytes});
  if (days_.empty() || days_.back().day < day) {
    if (days_.size() == kMostDays) days_.erase(days_.begin());
    days_.push_back({day, 0});
  }
  days_.back().bytes = SaturatingSum({days_.back().bytes, bytes});
}

uint64_t WrittenDays::BytesOf(uint32_t day) const {
  const auto found = std::find_if(days_.begin(), days_.end(), [day](const Day& d) { return d.day == day; });
  return found != days_.end() ? found->bytes : 0;
}

Status WrittenDays::VisitState(StateVisitor& visitor, const StateKey& key) {
  std::vector<uint64_t> numbers = {total_bytes_};
  for (const Day& day : days_) {
    numbers.push_back(day.day);
    numbers.push_back(day.bytes);
  }
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key, &numbers, 1 + 2 * kMostDays));
  if (!visitor.is_loading()) return Status::Ok();
  days_.clear();
  total_bytes_ = numbers.empty() ? 0 : numbers[0];
  bool is_right = numbers.size() % 2 == 1;
  for (size_t i = 1; is_right && i < numbers.size(); i += 2) {
    is_right = numbers[i] <= UINT32_MAX && (days_.empty() || numbers[i] > days_.back().day);
    days_.push_back({static_cast<uint32_t>(numbers[i]), numbers[i + 1]});
  }
  if (is_right) return Status::Ok();
  return {StatusCode::kCorrupt, "what the session says was written for it contradicts itself"};
}

std::string WrittenDays::Text() const {
  std::string text(kTextBegins);
  text += fmt::format("{}\n", total_bytes_);
  for (const Day& day : days_) text += fmt::format("{} {}\n", day.day, day.bytes);
  return text + "end\n";
}

Result<WrittenDays> WrittenDays::Read(std::string_view text) {
  const Status wrong(StatusCode::kCorrupt, "it is not what kvrun writes there");
  if (!text.starts_with(kTextBegins)) return wrong;
  text.remove_prefix(kTextBegins.size());
  WrittenDays read;
  const std::optional<uint64_t> total_bytes = TakeNumber(&text, '\n');
  if (!total_bytes) return wrong;
  while (text != "end\n") {
    const std::optional<uint64_t> day = TakeNumber(&text, ' ');
    const std::optional<uint64_t> bytes = day ? TakeNumber(&text, '\n') : std::nullopt;
    if (!bytes || *day > UINT32_MAX || read.days_.size() == kMostDays) return wrong;
    if (!read.days_.empty() && *day <= read.days_.back().day) return wrong;
    read.days_.push_back({static_cast<uint32_t>(*day), *bytes});
  }
  read.total_bytes_ = *total_bytes;
  return read;
}

uint32_t DayOf(int64_t seconds) {
  return static_cast<uint32_t>(std::max<int64_t>(seconds, 0) / kSecondsOfDay);
}

uint32_t Today() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return DayOf(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

// By the civil calendar of UTC.
std::string DateText(uint32_t day) {
  const std::chrono::year_month_day date{std::chrono::sys_days(std::chrono::days(day))};
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()));
}

}  // namespace kvrun
