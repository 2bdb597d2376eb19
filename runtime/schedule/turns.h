// Two threads that take turns: one that carries out long work, and the one that gave it that work and has
// more to do. Never both at once, so that neither needs a lock against the other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace kvrun {

class Turns {
 public:
  using Duration = std::chrono::steady_clock::duration;

  Turns();
  // Work that is under way is told to end, and waited for.
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // --- By the giver.
  // Nothing is under way. The work begins with Run.
  void Give(std::function<void()> work);
  bool is_under_way() const { return is_under_way_; }
  // Until the work ends, or rests after it has had `slice`.
  void Run(Duration slice);

  // --- In the work: it may rest here. True: it is to end early.
  bool Rest();

 private:
  enum class Whose : unsigned char { kGiver, kWorker };

  void Loop();
  // Under the mutex.
  void HandOver(Whose to);

  std::mutex mutex_;
  std::condition_variable changed_;
  Whose whose_ = Whose::kGiver;
  bool ends_ = false;
  std::function<void()> work_;
  std::chrono::steady_clock::time_point until_;
  bool is_under_way_ = false;  // the giver's
  bool has_ended_ = false;     // the worker's, read by the giver in its turn
  std::thread thread_;         // last: it uses all of the above
};

}  // namespace kvrun
