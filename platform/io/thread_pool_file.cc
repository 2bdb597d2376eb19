// Threads that call preadv and pwritev: works wherever files do.
#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>
#include <system_error>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "platform/io/queued_file.h"

namespace kvrun {
namespace {

// More would not be faster: flash needs a few requests in flight, and each of these is a thread.
constexpr uint32_t kMaxThreads = 16;

// A bounded queue. Its memory is allocated once; guarded by the file's mutex.
template <typename T>
class Ring {
 public:
  explicit Ring(uint32_t capacity) : items_(capacity) {}
  bool empty() const { return n_ == 0; }
  uint32_t size() const { return n_; }
  void Push(T item) { items_[(begin_ + n_++) % items_.size()] = item; }
  T Pop() {
    const T item = items_[begin_];
    begin_ = static_cast<uint32_t>((begin_ + 1) % items_.size());
    --n_;
    return item;
  }

 private:
  std::vector<T> items_;
  uint32_t begin_ = 0;
  uint32_t n_ = 0;
};

class ThreadPoolFile final : public QueuedFile {
 public:
  ThreadPoolFile(std::shared_ptr<BackingFile> file, uint32_t queue_depth)
      : QueuedFile(std::move(file), IoBackend::kThreads, queue_depth),
        started_(queue_depth),
        work_(queue_depth),
        answers_(queue_depth) {}

  ~ThreadPoolFile() override {
    Drain();
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_there_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Status Open() {
    const uint32_t n_threads = ThreadPoolSize(mode().queue_depth);
    threads_.reserve(n_threads);
    // The program's signals are for its own threads; these inherit the mask.
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const Status status = StartThreads(n_threads);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return status;
  }

 protected:
  void Start(uint32_t index) override { started_.Push(index); }

  Status Kick() override {
    if (started_.empty()) return Status::Ok();
    {
      const std::lock_guard lock(mutex_);
      while (!started_.empty()) work_.Push(started_.Pop());
    }
    work_there_.notify_all();
    return Status::Ok();
  }

  Status Reap(uint32_t wait_for) override {
    KVRUN_RETURN_IF_ERROR(Kick());
    std::unique_lock lock(mutex_);
    answer_there_.wait(lock, [&] { return answers_.size() >= wait_for; });
    while (!answers_.empty()) {
      const Answer answer = answers_.Pop();
      lock.unlock();
      OnAnswer(answer.index, answer.bytes_or_error);
      lock.lock();
    }
    lock.unlock();
    return Kick();
  }

 private:
  struct Answer {
    uint32_t index = 0;
    int64_t bytes_or_error = 0;
  };

  Status StartThreads(uint32_t n_threads) {
    try {
      while (threads_.size() < n_threads) threads_.emplace_back([this] { Work(); });
    } catch (const std::system_error& error) {
      if (threads_.empty()) return StatusFromErrno(error.code().value(), "cannot start a thread");
      AddNote("threads: fewer could be started than were wanted");
    }
    return Status::Ok();
  }

  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_there_.wait(lock, [&] { return stop_ || !work_.empty(); });
      if (work_.empty()) return;
      const uint32_t index = work_.Pop();
      lock.unlock();
      const Transfer& work = transfer(index);
      const auto count = static_cast<int>(work.left().size());
      const auto offset = static_cast<off_t>(work.offset);
      const ssize_t bytes = work.kind == IoKind::kRead ? preadv(fd(), work.left().data(), count, offset)
                                                       : pwritev(fd(), work.left().data(), count, offset);
      const int64_t answer = bytes < 0 ? -errno : bytes;
      lock.lock();
      answers_.Push({index, answer});
      answer_there_.notify_one();
    }
  }

  Ring<uint32_t> started_;  // the caller's thread alone
  std::mutex mutex_;
  std::condition_variable work_there_;
  std::condition_variable answer_there_;
  Ring<uint32_t> work_;
  Ring<Answer> answers_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

uint32_t ThreadPoolSize(uint32_t queue_depth) { return std::min(queue_depth, kMaxThreads); }

Result<std::unique_ptr<QueuedFile>> MakeThreadPoolFile(std::shared_ptr<BackingFile> file,
                                                       uint32_t queue_depth) {
  auto made = std::make_unique<ThreadPoolFile>(std::move(file), queue_depth);
  KVRUN_RETURN_IF_ERROR(made->Open());
  return std::unique_ptr<QueuedFile>(std::move(made));
}

}  // namespace kvrun
