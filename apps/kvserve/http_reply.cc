#include "apps/kvserve/http_reply.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <utility>

#include <boost/beast/http/status.hpp>

#include "apps/kvserve/http_rules.h"

namespace kvrun::serve {
namespace {

// Each line of `text` after `mark`, and the empty line that ends an event.
std::string EventText(std::string_view mark, std::string_view text) {
  std::string lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of("\r\n", begin), text.size());
    lines.append(mark).append(text.substr(begin, end - begin)).append("\n");
    begin = end + 1;
  }
  return lines + "\n";
}

class Reply final : public HttpReply {
 public:
  explicit Reply(std::shared_ptr<ReplyChannel> channel) : channel_(std::move(channel)) {}
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;
  ~Reply() override {
    channel_->Fail("the server has not answered this request, which is an error of its own");
  }

  void Send(unsigned status, std::string_view content_type, std::string body,
            const HttpFields& fields) override {
    channel_->Pass({ReplyPart::Kind::kWhole, status, std::string(content_type), std::move(body), fields});
  }
  void BeginEvents() override { channel_->Pass({ReplyPart::Kind::kBegin, 200, "text/event-stream", "", {}}); }
  void SendEvent(std::string_view data) override { Pass(ReplyPart::Kind::kEvent, EventText("data: ", data)); }
  void SendComment(std::string_view comment) override {
    Pass(ReplyPart::Kind::kEvent, EventText(": ", comment));
  }
  void End() override { Pass(ReplyPart::Kind::kEnd, ""); }
  bool is_gone() const override { return channel_->is_gone(); }
  void OnGone(std::function<void()> gone) override { channel_->OnGone(std::move(gone)); }

 private:
  void Pass(ReplyPart::Kind kind, std::string text) { channel_->Pass({kind, 200, "", std::move(text), {}}); }

  std::shared_ptr<ReplyChannel> channel_;
};

bool IsOneLine(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos;
}

}  // namespace

void ReplyChannel::Pass(ReplyPart part) {
  std::function<void()> gone;  // may own a reply, which ends in here: destroyed outside of the mutex
  const std::lock_guard lock(mutex_);
  const bool begins = part.kind == ReplyPart::Kind::kWhole || part.kind == ReplyPart::Kind::kBegin;
  if (is_gone() || phase_ != (begins ? Phase::kNothing : Phase::kEvents)) return;
  const bool goes_on = part.kind == ReplyPart::Kind::kBegin || part.kind == ReplyPart::Kind::kEvent;
  phase_ = goes_on ? Phase::kEvents : Phase::kEnded;
  if (!goes_on) gone.swap(gone_);
  sink_(std::move(part));
}

void ReplyChannel::Fail(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (is_gone() || phase_ == Phase::kEnded) return;
  }
  try {
    Pass({ReplyPart::Kind::kWhole, 500, "application/json", ErrorBody(500, message), {}});
    Pass({ReplyPart::Kind::kCut, 500, "", "", {}});
  } catch (const std::exception&) {  // no memory to say so; the client will go
  }
}

void ReplyChannel::OnGone(std::function<void()> gone) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kEnded) return;
    if (!is_gone()) {
      gone_.swap(gone);
      return;
    }
  }
  if (gone) gone();
}

std::function<void()> ReplyChannel::MarkGone() {
  const std::lock_guard lock(mutex_);
  is_gone_.store(true);
  std::function<void()> gone;
  gone.swap(gone_);
  return gone;
}

std::shared_ptr<HttpReply> MakeReply(std::shared_ptr<ReplyChannel> channel) {
  return std::make_shared<Reply>(std::move(channel));
}

std::string HeadText(const ResponseHead& head) {
  const auto reason =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(head.status));
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", head.status,
                                 std::string(reason.data(), reason.size()), fmt::gmtime(std::time(nullptr)));
  const auto add = [&](std::string_view name, std::string_view value) {
    // A value from elsewhere must not become a field, or an answer, of its own.
    if (IsOneLine(name) && IsOneLine(value)) text.append(name).append(": ").append(value).append("\r\n");
  };
  if (!head.content_type.empty()) add("Content-Type", head.content_type);
  if (head.has_length) add("Content-Length", std::to_string(head.body_bytes));
  if (head.is_chunked) add("Transfer-Encoding", "chunked");
  add("Connection", head.is_kept_alive ? "keep-alive" : "close");
  // What is answered is for who asked: no other site's page may have it as a script or a picture.
  add("X-Content-Type-Options", "nosniff");
  add("Cross-Origin-Resource-Policy", "same-origin");
  for (const auto& [name, value] : head.fields) add(name, value);
  return text + "\r\n";
}

std::string ChunkText(std::string_view bytes) { return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes); }

}  // namespace kvrun::serve
