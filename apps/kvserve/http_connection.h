// A client's connection: reads requests, one after another, and writes what is answered.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include "apps/kvserve/http_reader.h"
#include "apps/kvserve/http_reply.h"
#include "apps/kvserve/http_server.h"

namespace kvrun::serve {

namespace net = boost::asio;

class Connection;

// What connections have in common. Replies may keep it longer than the server lives.
struct HttpShared {
  HttpOptions options;
  HttpHandler handler;
  net::io_context io{2};
  net::thread_pool* workers = nullptr;  // for handlers; there as long as `io` runs
  std::function<void()> on_closed;      // likewise
  std::atomic<bool> is_stopping{false};
  std::atomic<size_t> body_bytes{0};  // of requests that are read or handled

  // Those that are open.
  void Add(const std::shared_ptr<Connection>& connection);
  void Remove(const std::shared_ptr<Connection>& connection);
  std::vector<std::shared_ptr<Connection>> Connections();
  size_t n_served();
  size_t n_too_many();

 private:
  std::mutex mutex_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  size_t n_too_many_ = 0;  // of them
};

// Bytes that count in HttpShared::body_bytes as long as this lives.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<HttpShared> shared) : shared_(std::move(shared)) {}
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  ~BodyShare() { shared_->body_bytes -= bytes_; }
  // False: together with others' it is too much.
  bool Grow(size_t bytes);

 private:
  std::shared_ptr<HttpShared> shared_;
  size_t bytes_ = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Strand = net::strand<net::io_context::executor_type>;
  using Socket = net::basic_stream_socket<net::ip::tcp, Strand>;

  // One too many is answered 503, and closed.
  Connection(std::shared_ptr<HttpShared> shared, Socket socket, bool is_one_too_many);

  bool is_one_too_many() const { return is_one_too_many_; }

  // Any thread.
  void Start();
  void Stop();   // ends with the reply that is under way
  void Abort();  // ends now

 private:
  enum class Mode : uint8_t { kReading, kReplying, kLingering, kClosed };
  // A time by which something has to be. A later one costs nothing: the timer looks when it wakes.
  struct Deadline {
    explicit Deadline(const Strand& strand) : timer(strand) {}
    net::steady_timer timer;
    std::chrono::steady_clock::time_point at = std::chrono::steady_clock::time_point::max();
    std::chrono::steady_clock::time_point wakes = std::chrono::steady_clock::time_point::max();
    void (Connection::*passed)() = nullptr;
  };

  // All of these run on the strand.
  template <typename Work>
  void Guarded(const Work& work);
  template <typename Work>
  void Post(Work work);
  void Arm(Deadline* deadline, std::chrono::steady_clock::duration after);
  void Wake(Deadline* deadline);

  void Read();
  void OnRead(const boost::system::error_code& error, size_t n_bytes);
  void OnEnd();
  void OnReadLate();
  void BeginRequest();
  void ReadRequest();
  void Handle();
  void Refuse(const Refusal& refusal);

  void Watch();
  void WatchForReset();
  void Probe();
  bool IsReadPaused() const;

  void AddPart(ReplyPart part);
  void BeginReply(ReplyPart part);
  void AddEvent(const std::string& text);
  void Queue(std::string text);
  void Write();
  void OnWritten(const boost::system::error_code& error, size_t n_bytes);
  void OnWriteLate();
  void FinishReply();
  void Linger();
  void Close();

  std::shared_ptr<HttpShared> shared_;
  Socket socket_;
  const bool is_one_too_many_;
  Mode mode_ = Mode::kReading;

  std::array<char, 16384> read_buffer_;
  std::string input_;  // that is not read by `reader_` yet: requests may come ahead of their turn
  std::unique_ptr<RequestReader> reader_;
  std::shared_ptr<BodyShare> body_;
  bool is_reading_ = false;
  bool has_ended_ = false;  // the client sends no more
  bool is_watching_ = false;
  Deadline deadline_;  // in kReading: of the request; in kReplying: the next probe; in kLingering: the end
  std::chrono::steady_clock::time_point probed_since_;

  std::shared_ptr<ReplyChannel> reply_;  // in kReplying; null: the server's own
  bool has_begun_events_ = false;
  bool has_reply_ended_ = false;
  bool is_kept_alive_ = false;  // after the reply

  std::deque<std::string> output_;
  size_t output_bytes_ = 0;
  size_t first_written_bytes_ = 0;  // of the first of `output_`
  bool is_writing_ = false;
  Deadline write_deadline_;
};

}  // namespace kvrun::serve
