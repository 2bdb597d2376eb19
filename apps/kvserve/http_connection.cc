#include "apps/kvserve/http_connection.h"

#include <poll.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

namespace kvrun::serve {
namespace {

using Clock = std::chrono::steady_clock;

// Of requests that come ahead of their turn.
constexpr size_t kMostInputBytes = 64 * 1024;
// Of events that a client does not take.
constexpr size_t kMostOutputBytes = 8 * 1024 * 1024;
constexpr size_t kMostBuffers = 16;
// A client that is told no reads on to the end of what it is sending, or not: then it would see a reset
// instead of the answer. So what it sends is taken for a while.
constexpr auto kLinger = std::chrono::seconds(5);
constexpr auto kLingerStopping = std::chrono::seconds(1);
constexpr auto kOneTooManyTime = std::chrono::seconds(2);
constexpr auto kFirstProbe = std::chrono::milliseconds(50);
constexpr auto kProbeOften = std::chrono::milliseconds(100);
constexpr auto kProbeOftenFor = std::chrono::seconds(2);
constexpr auto kProbeSeldom = std::chrono::seconds(1);

}  // namespace

void HttpShared::Add(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  connections_.insert(connection);
  if (connection->is_one_too_many()) ++n_too_many_;
}
void HttpShared::Remove(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  if (connections_.erase(connection) > 0 && connection->is_one_too_many()) --n_too_many_;
}
std::vector<std::shared_ptr<Connection>> HttpShared::Connections() {
  const std::lock_guard lock(mutex_);
  return {connections_.begin(), connections_.end()};
}
size_t HttpShared::n_served() {
  const std::lock_guard lock(mutex_);
  return connections_.size() - n_too_many_;
}
size_t HttpShared::n_too_many() {
  const std::lock_guard lock(mutex_);
  return n_too_many_;
}

bool BodyShare::Grow(size_t bytes) {
  const size_t more = bytes - bytes_;
  bytes_ = bytes;
  return (shared_->body_bytes += more) <= shared_->options.most_bodies_bytes;
}

Connection::Connection(std::shared_ptr<HttpShared> shared, Socket socket, bool is_one_too_many)
    : shared_(std::move(shared)),
      socket_(std::move(socket)),
      is_one_too_many_(is_one_too_many),
      deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()) {
  deadline_.passed = &Connection::OnReadLate;
  write_deadline_.passed = &Connection::OnWriteLate;
}

// What goes wrong (no memory) ends this connection and no other.
template <typename Work>
void Connection::Guarded(const Work& work) {
  if (mode_ == Mode::kClosed) return;
  try {
    work();
  } catch (const std::exception&) {
    Close();
  }
}

// Weak: what is posted when the server has ended is never run, and would keep all this.
template <typename Work>
void Connection::Post(Work work) {
  net::post(socket_.get_executor(), [weak = weak_from_this(), work = std::move(work)]() mutable {
    const std::shared_ptr<Connection> self = weak.lock();
    if (self) self->Guarded([&] { work(*self); });
  });
}

void Connection::Start() {
  Post([](Connection& self) {
    self.BeginRequest();
    self.Arm(&self.deadline_, self.is_one_too_many_
                                  ? Clock::duration(kOneTooManyTime)
                                  : std::chrono::seconds(self.shared_->options.request_timeout_s));
    self.Read();
  });
}

void Connection::Stop() {
  Post([](Connection& self) {
    if (self.mode_ == Mode::kReading) self.Close();
    if (self.mode_ == Mode::kLingering) self.Arm(&self.deadline_, kLingerStopping);
  });
}

void Connection::Abort() {
  Post([](Connection& self) { self.Close(); });
}

void Connection::Arm(Deadline* deadline, Clock::duration after) {
  deadline->at = Clock::now() + after;
  if (deadline->wakes <= deadline->at) return;
  deadline->wakes = deadline->at;
  deadline->timer.expires_at(deadline->at);
  deadline->timer.async_wait([weak = weak_from_this(), deadline](const boost::system::error_code& error) {
    const std::shared_ptr<Connection> self = weak.lock();
    if (!error && self) self->Guarded([&] { self->Wake(deadline); });
  });
}

void Connection::Wake(Deadline* deadline) {
  deadline->wakes = Clock::time_point::max();
  if (deadline->at == Clock::time_point::max()) return;
  const auto left = deadline->at - Clock::now();
  if (left > Clock::duration::zero()) return Arm(deadline, left);
  deadline->at = Clock::time_point::max();
  (this->*deadline->passed)();
}

// Reading goes on while an answer is made: so a reset is seen at once.
void Connection::Read() {
  if (mode_ == Mode::kClosed || is_reading_) return;
  if (has_ended_ || IsReadPaused()) return Watch();
  is_reading_ = true;
  socket_.async_read_some(net::buffer(read_buffer_),
                          [self = shared_from_this()](const auto& error, size_t n) {
                            self->is_reading_ = false;
                            self->Guarded([&] { self->OnRead(error, n); });
                          });
}

bool Connection::IsReadPaused() const { return mode_ == Mode::kReplying && input_.size() >= kMostInputBytes; }

void Connection::OnRead(const boost::system::error_code& error, size_t n_bytes) {
  if (error == net::error::eof) return OnEnd();
  if (error) return Close();
  if (mode_ != Mode::kLingering) input_.append(read_buffer_.data(), n_bytes);
  if (mode_ == Mode::kReading) ReadRequest();
  Read();
}

// The client sends no more. It may have gone, or wait for its answer: in kReplying that is found out.
void Connection::OnEnd() {
  has_ended_ = true;
  if (mode_ != Mode::kReplying) return Close();
  Watch();
}

void Connection::OnReadLate() {
  if (mode_ == Mode::kReplying) return Probe();
  if (mode_ == Mode::kReading && reader_->has_begun())
    return Refuse({408, "the request did not come to its end in time", "", {}});
  Close();
}

void Connection::BeginRequest() {
  mode_ = Mode::kReading;
  reader_ = std::make_unique<RequestReader>(shared_->options);
  body_ = std::make_shared<BodyShare>(shared_);
}

void Connection::ReadRequest() {
  const bool had_begun = reader_->has_begun();
  const RequestReader::State state = reader_->Read(&input_);
  if (!had_begun && reader_->has_begun() && !is_one_too_many_)
    Arm(&deadline_, std::chrono::seconds(shared_->options.request_timeout_s));
  if (state == RequestReader::State::kHead) return;
  if (is_one_too_many_)
    return Refuse({503, "the server has as many connections as it takes", "", {{"Retry-After", "1"}}});
  if (state == RequestReader::State::kRefused) return Refuse(reader_->refusal());
  if (!body_->Grow(reader_->body_bytes()))
    return Refuse({503, "others send the server too much at this time", "", {{"Retry-After", "1"}}});
  if (state == RequestReader::State::kDone) return Handle();
  if (reader_->TakeWaiting()) {
    Queue("HTTP/1.1 100 Continue\r\n\r\n");
    Write();
  }
}

void Connection::Handle() {
  mode_ = Mode::kReplying;
  deadline_.at = Clock::time_point::max();
  has_begun_events_ = has_reply_ended_ = false;
  is_kept_alive_ = reader_->is_kept_alive();
  // Under the channel's lock, so that parts stay in order. `shared` has the io_context of the strand.
  reply_ = std::make_shared<ReplyChannel>([weak = weak_from_this(), shared = shared_](ReplyPart part) {
    if (const std::shared_ptr<Connection> self = weak.lock())
      self->Post([part = std::move(part)](Connection& c) mutable { c.AddPart(std::move(part)); });
  });
  const auto request = std::make_shared<const HttpRequest>(reader_->Take());
  net::post(*shared_->workers, [shared = shared_, channel = reply_, request, body = std::move(body_)] {
    if (channel->is_gone()) return;
    const std::shared_ptr<HttpReply> reply = MakeReply(channel);  // outlives what is thrown
    try {
      shared->handler(*request, reply);
    } catch (const std::exception& failure) {
      channel->Fail(failure.what());
    } catch (...) {
      channel->Fail("the server could not answer this request, which is an error of its own");
    }
  });
}

void Connection::Refuse(const Refusal& refusal) {
  mode_ = Mode::kReplying;
  deadline_.at = Clock::time_point::max();
  reply_ = nullptr;
  is_kept_alive_ = false;
  input_.clear();
  BeginReply({ReplyPart::Kind::kWhole, refusal.status, "application/json",
              ErrorBody(refusal.status, refusal.message, refusal.code), refusal.fields});
  has_reply_ended_ = true;
  Write();
}

// Nothing is read. Not probed at once: an answer that takes no time comes without.
void Connection::Watch() {
  WatchForReset();
  if (mode_ != Mode::kReplying || deadline_.at != Clock::time_point::max()) return;
  probed_since_ = Clock::now();
  Arm(&deadline_, kFirstProbe);
}

// Completes where the client resets the connection, whether or not something is read or written.
void Connection::WatchForReset() {
  if (is_watching_) return;
  is_watching_ = true;
  socket_.async_wait(Socket::wait_error, [self = shared_from_this()](const auto& error) {
    self->is_watching_ = false;
    if (error || self->mode_ == Mode::kClosed) return;
    pollfd watched{self->socket_.native_handle(), 0, 0};
    // Else it was urgent data, of which nothing here takes notice.
    if (poll(&watched, 1, 0) == 1 && (watched.revents & (POLLERR | POLLHUP)) != 0) self->Close();
  });
}

// A closed socket looks like one that was closed in one direction, until it is sent something: then it
// answers with a reset. So something that clients ignore is sent. HTTP/1.0 has nothing such before the
// answer; there TCP's own probes find out, after a minute or two.
void Connection::Probe() {
  if (mode_ != Mode::kReplying || has_reply_ended_ || !(has_ended_ || IsReadPaused())) return;
  if (output_.empty()) {
    if (has_begun_events_) {
      AddEvent(":\n\n");
    } else if (reader_->is_http_1_1()) {
      Queue("HTTP/1.1 100 Continue\r\n\r\n");
    }
    Write();
  }
  if (mode_ != Mode::kReplying) return;
  Arm(&deadline_,
      Clock::now() - probed_since_ < kProbeOftenFor ? Clock::duration(kProbeOften) : kProbeSeldom);
}

void Connection::AddPart(ReplyPart part) {
  if (mode_ != Mode::kReplying || has_reply_ended_) return;
  switch (part.kind) {
    case ReplyPart::Kind::kWhole:
      BeginReply(std::move(part));
      has_reply_ended_ = true;
      break;
    case ReplyPart::Kind::kBegin:
      part.fields.emplace_back("Cache-Control", "no-store");
      part.fields.emplace_back("X-Accel-Buffering", "no");  // a proxy must not gather them
      BeginReply(std::move(part));
      has_begun_events_ = true;
      break;
    case ReplyPart::Kind::kEvent: AddEvent(part.text); break;
    case ReplyPart::Kind::kEnd:
      if (reader_->is_http_1_1() && !reader_->is_of_head()) Queue("0\r\n\r\n");
      has_reply_ended_ = true;
      break;
    case ReplyPart::Kind::kCut:
      is_kept_alive_ = false;
      has_reply_ended_ = true;
      break;
  }
  if (has_begun_events_ && output_bytes_ > kMostOutputBytes) return Close();
  Write();
}

void Connection::BeginReply(ReplyPart part) {
  const bool is_whole = part.kind == ReplyPart::Kind::kWhole;
  is_kept_alive_ = is_kept_alive_ && !shared_->is_stopping;
  ResponseHead head;
  head.status = part.status;
  head.content_type = std::move(part.content_type);
  head.fields = std::move(part.fields);
  const bool has_body = part.status != 204 && part.status != 304;
  head.has_length = is_whole && has_body;
  head.body_bytes = part.text.size();
  head.is_chunked = !is_whole && reader_->is_http_1_1();
  head.is_kept_alive = is_kept_alive_;
  Queue(HeadText(head));
  if (is_whole && has_body && !reader_->is_of_head()) Queue(std::move(part.text));
}

void Connection::AddEvent(const std::string& text) {
  if (reader_->is_of_head()) return;
  Queue(reader_->is_http_1_1() ? ChunkText(text) : text);
}

void Connection::Queue(std::string text) {
  if (text.empty()) return;
  output_bytes_ += text.size();
  output_.push_back(std::move(text));
}

void Connection::Write() {
  if (mode_ == Mode::kClosed || is_writing_) return;
  if (output_.empty()) {
    write_deadline_.at = Clock::time_point::max();
    if (mode_ == Mode::kReplying && has_reply_ended_) FinishReply();
    return;
  }
  std::vector<net::const_buffer> buffers;
  for (const std::string& text : output_) {
    buffers.push_back(net::buffer(text) + (buffers.empty() ? first_written_bytes_ : 0));
    if (buffers.size() == kMostBuffers) break;
  }
  is_writing_ = true;
  Arm(&write_deadline_, std::chrono::seconds(shared_->options.send_timeout_s));
  socket_.async_write_some(buffers, [self = shared_from_this()](const auto& error, size_t n) {
    self->is_writing_ = false;
    self->Guarded([&] { self->OnWritten(error, n); });
  });
}

void Connection::OnWritten(const boost::system::error_code& error, size_t n_bytes) {
  if (error) return Close();
  output_bytes_ -= n_bytes;
  first_written_bytes_ += n_bytes;
  while (!output_.empty() && first_written_bytes_ >= output_.front().size()) {
    first_written_bytes_ -= output_.front().size();
    output_.pop_front();
  }
  Write();
}

void Connection::OnWriteLate() { Close(); }

void Connection::FinishReply() {
  reply_ = nullptr;
  if (!is_kept_alive_ || shared_->is_stopping || (has_ended_ && input_.empty())) return Linger();
  BeginRequest();
  Arm(&deadline_, std::chrono::seconds(shared_->options.idle_timeout_s));
  if (!input_.empty()) ReadRequest();
  if (has_ended_ && mode_ == Mode::kReading) return Close();
  Read();
}

void Connection::Linger() {
  if (has_ended_) return Close();
  mode_ = Mode::kLingering;
  input_.clear();
  boost::system::error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  Arm(&deadline_, shared_->is_stopping ? kLingerStopping : kLinger);
  Read();
}

void Connection::Close() {
  if (mode_ == Mode::kClosed) return;
  mode_ = Mode::kClosed;
  body_ = nullptr;
  boost::system::error_code error;
  socket_.close(error);
  deadline_.timer.cancel();
  write_deadline_.timer.cancel();
  if (reply_) {
    // Not here: what it calls may wait for something, or ask this connection.
    if (std::function<void()> gone = reply_->MarkGone())
      net::post(shared_->io, [gone = std::move(gone)] {
        try {
          gone();
        } catch (const std::exception&) {  // a matter of who gave it, as it has no client any more
        }
      });
    reply_ = nullptr;
  }
  shared_->Remove(shared_from_this());
  shared_->on_closed();
}

}  // namespace kvrun::serve
