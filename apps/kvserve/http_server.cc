#include "apps/kvserve/http_server.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <limits>
#include <stdexcept>
#include <thread>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>

#include "apps/common/printable.h"
#include "apps/kvserve/http_connection.h"
#include "apps/kvserve/http_rules.h"

namespace kvrun::serve {
namespace {

using net::ip::tcp;
using Clock = std::chrono::steady_clock;
using Acceptor = net::basic_socket_acceptor<tcp, Connection::Strand>;

constexpr int kBacklog = 128;
constexpr size_t kWorkers = 2;
constexpr int kSendBufferBytes = 256 * 1024;
// So many more connections are told that they are too many; further ones are closed.
constexpr size_t kMostTooMany = 32;
constexpr auto kAcceptAgain = std::chrono::milliseconds(100);  // where descriptors have run out

// Threads that begin while this lives take no signals: these are the main thread's.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

[[noreturn]] void ThrowUnfit(const std::string& what) { throw std::runtime_error(what); }

void CheckKey(const std::string& key) {
  const bool is_sendable = std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (key.size() > kLongestKeyBytes || !is_sendable)
    ThrowUnfit("the API key cannot be sent in HTTP: it takes up to " + std::to_string(kLongestKeyBytes) +
               " letters, digits and signs of ASCII, without spaces");
}

// Of the host and of nothing else: without a key its addresses are of loopback.
tcp::endpoint FindEndpoint(net::io_context* io, const HttpOptions& options) {
  const std::string shown = cli::Printable(cli::Clipped(options.host, 200));
  std::string host = options.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  boost::system::error_code error;
  tcp::resolver resolver(*io);
  const auto found = resolver.resolve(host, "", tcp::resolver::passive, error);
  if (host.empty() || error || found.empty())
    ThrowUnfit("the host \"" + shown +
               "\" is not known: give an address of this machine, as --host 127.0.0.1");
  const std::vector<tcp::endpoint> endpoints(found.begin(), found.end());
  const bool is_loopback = std::all_of(endpoints.begin(), endpoints.end(),
                                       [](const auto& endpoint) { return endpoint.address().is_loopback(); });
  if (options.api_key.empty() && !is_loopback)
    ThrowUnfit(
        "others can reach the host \"" + shown +
        "\", so a key is required: --api-key-file FILE, or serve this machine alone with --host 127.0.0.1");
  const auto v4 = std::find_if(endpoints.begin(), endpoints.end(),
                               [](const auto& endpoint) { return endpoint.address().is_v4(); });
  return {(v4 != endpoints.end() ? *v4 : endpoints.front()).address(), options.port};
}

void Listen(Acceptor* acceptor, const tcp::endpoint& endpoint, const HttpOptions& options) {
  boost::system::error_code error;
  acceptor->open(endpoint.protocol(), error);
  if (!error) {
    fcntl(acceptor->native_handle(), F_SETFD, FD_CLOEXEC);
    acceptor->set_option(tcp::acceptor::reuse_address(true), error);
    acceptor->bind(endpoint, error);
  }
  if (!error) acceptor->listen(kBacklog, error);
  if (!error) return;
  const std::string host = cli::Printable(cli::Clipped(options.host, 200));
  const std::string port = "port " + std::to_string(options.port) + " of " + host;
  if (error == net::error::address_in_use)
    ThrowUnfit(port +
               " is in use: end the program that has it, or take another port with --port N (0: a free one)");
  if (error == net::error::access_denied)
    ThrowUnfit(port + " is kept for the system: take one from 1024 on with --port N");
  if (error == boost::system::errc::address_not_available)
    ThrowUnfit("the host \"" + host +
               "\" is not an address of this machine: give one of its own with --host");
  ThrowUnfit(port + " cannot be listened on: " + error.message());
}

// A client whose machine has gone without a word is noticed, too: TCP asks it, and waits for what was sent.
void SetUp(Connection::Socket* socket, const HttpOptions& options) {
  const int fd = socket->native_handle();
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  const auto set = [&](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // Else the kernel takes megabytes, of which it says only by the third that a slow client has taken some.
  set(SOL_SOCKET, SO_SNDBUF, kSendBufferBytes);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 15);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::min(options.send_timeout_s, 3600U) * 1000));
}

class Server final : public HttpServer {
 public:
  Server(const HttpOptions& options, HttpHandler handler);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() override;

  uint16_t port() const override { return port_; }
  void Run() override;
  void Stop(uint32_t patience_s) override;
  uint32_t n_connections() const override { return static_cast<uint32_t>(shared_->n_served()); }

 private:
  void RunThread();
  // These run on control_.
  void Accept();
  void OnAccept(const boost::system::error_code& error, Connection::Socket socket);
  void Serve(Connection::Socket socket);
  void AwaitStop();
  void OnStop();
  void EndIfDone();

  const std::shared_ptr<HttpShared> shared_ = std::make_shared<HttpShared>();
  Connection::Strand control_{shared_->io.get_executor()};
  Acceptor acceptor_{control_};
  net::steady_timer accept_timer_{control_};
  net::steady_timer patience_timer_{control_};
  Clock::time_point stop_by_ = Clock::time_point::max();
  std::atomic<uint32_t> patience_s_{std::numeric_limits<uint32_t>::max()};
  net::posix::basic_stream_descriptor<Connection::Strand> stop_event_{control_};
  int stop_fd_ = -1;  // of stop_event_
  uint16_t port_ = 0;
  std::mutex running_;
  std::unique_ptr<net::thread_pool> workers_;
};

Server::Server(const HttpOptions& options, HttpHandler handler) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "used in a signal handler");
  CheckKey(options.api_key);
  shared_->options = options;
  shared_->handler = std::move(handler);
  Listen(&acceptor_, FindEndpoint(&shared_->io, options), options);
  port_ = acceptor_.local_endpoint().port();
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd_ < 0)
    ThrowUnfit("the server cannot start: " +
               boost::system::error_code(errno, boost::system::system_category()).message());
  stop_event_.assign(stop_fd_);
  const BlockedSignals blocked;
  workers_ = std::make_unique<net::thread_pool>(kWorkers);
  shared_->workers = workers_.get();
  shared_->on_closed = [this] { net::post(control_, [this] { EndIfDone(); }); };
  net::post(control_, [this] {
    AwaitStop();
    Accept();
  });
}

Server::~Server() {
  Stop(0);
  { const std::lock_guard lock(running_); }
  // What Run has not done, or what was posted since: what is pending in `io` refers to this.
  shared_->io.restart();
  RunThread();
  workers_->join();
  shared_->io.restart();
  RunThread();
}

void Server::RunThread() {
  for (;;) {
    try {
      shared_->io.run();
      return;
    } catch (const std::exception&) {  // no memory for a connection: the next one may have some
    }
  }
}

void Server::Run() {
  const std::lock_guard lock(running_);
  std::thread other;
  {
    const BlockedSignals blocked;
    other = std::thread([this] { RunThread(); });
  }
  RunThread();
  other.join();
}

void Server::Accept() {
  acceptor_.async_accept(net::make_strand(shared_->io.get_executor()),
                         [this](const boost::system::error_code& error, Connection::Socket socket) {
                           OnAccept(error, std::move(socket));
                         });
}

void Server::OnAccept(const boost::system::error_code& error, Connection::Socket socket) {
  if (shared_->is_stopping) return;
  if (error) {
    accept_timer_.expires_after(kAcceptAgain);
    return accept_timer_.async_wait([this](const boost::system::error_code&) {
      if (!shared_->is_stopping) Accept();
    });
  }
  try {
    Serve(std::move(socket));
  } catch (const std::exception&) {  // no memory for one more connection
  }
  Accept();
}

void Server::Serve(Connection::Socket socket) {
  const bool is_one_too_many = shared_->n_served() >= shared_->options.most_connections;
  if (is_one_too_many && shared_->n_too_many() >= kMostTooMany) return;
  SetUp(&socket, shared_->options);
  const auto connection = std::make_shared<Connection>(shared_, std::move(socket), is_one_too_many);
  shared_->Add(connection);
  connection->Start();
}

// An event descriptor, because little else may be done in a signal handler.
void Server::Stop(uint32_t patience_s) {
  uint32_t before = patience_s_.load();
  while (patience_s < before && !patience_s_.compare_exchange_weak(before, patience_s)) {
  }
  const uint64_t one = 1;
  const int error_before = errno;
  [[maybe_unused]] const ssize_t n = write(stop_fd_, &one, sizeof(one));  // full: it has been told
  errno = error_before;
}

void Server::AwaitStop() {
  stop_event_.async_wait(net::posix::stream_descriptor::wait_read,
                         [this](const boost::system::error_code& error) {
                           if (!error) OnStop();
                         });
}

void Server::OnStop() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(stop_fd_, &count, sizeof(count));
  if (!shared_->is_stopping.exchange(true)) {
    boost::system::error_code error;
    acceptor_.close(error);
    accept_timer_.cancel();
    for (const auto& connection : shared_->Connections()) connection->Stop();
  }
  stop_by_ = std::min(stop_by_, Clock::now() + std::chrono::seconds(patience_s_.load()));
  patience_timer_.expires_at(stop_by_);
  patience_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    for (const auto& connection : shared_->Connections()) connection->Abort();
  });
  AwaitStop();
  EndIfDone();
}

// Nothing is pending then, so that io.run() returns.
void Server::EndIfDone() {
  if (!shared_->is_stopping || !shared_->Connections().empty()) return;
  patience_timer_.cancel();
  stop_event_.cancel();
}

}  // namespace

std::unique_ptr<HttpServer> HttpServer::Create(const HttpOptions& options, HttpHandler handler) {
  return std::make_unique<Server>(options, std::move(handler));
}

}  // namespace kvrun::serve
