#include "platform/io/secret_key.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace kvrun {
namespace {

// Which function it is, is read anew for each call: so no compiler knows what it does. (OpenSSL's
// OPENSSL_cleanse is made so, too; this one is there in every build.)
void* (*const volatile g_set_memory)(void*, int, size_t) = std::memset;

// Where all keys of the process lie, side by side: pages that are locked once, and stay. Any thread.
class KeyMemory {
 public:
  std::byte* Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) AddPages();
    std::byte* const bytes = free_.back();
    free_.pop_back();
    return bytes;
  }
  void GiveBack(std::byte* bytes) {
    const std::lock_guard lock(mutex_);
    free_.push_back(bytes);  // there is room: it was there before
  }

 private:
  // Of 4 KiB and of 16 alike.
  static constexpr size_t kPageBytes = 16 * 1024;

  // What the system refuses is not needed to go on.
  void AddPages() {
    auto* const page = static_cast<std::byte*>(operator new (kPageBytes, std::align_val_t{kPageBytes}));
    std::memset(page, 0, kPageBytes);
    (void)mlock(page, kPageBytes);
    (void)madvise(page, kPageBytes, MADV_DONTDUMP);
    n_keys_ += kPageBytes / SecretKey::kBytes;
    free_.reserve(n_keys_);
    for (size_t at = kPageBytes; at > 0; at -= SecretKey::kBytes)
      free_.push_back(page + at - SecretKey::kBytes);
  }

  std::mutex mutex_;
  std::vector<std::byte*> free_;
  size_t n_keys_ = 0;
};

// Never destroyed: keys may end after all else.
KeyMemory& KeyMemoryHere() {
  static auto* const memory = new KeyMemory;
  return *memory;
}

}  // namespace

void Wipe(std::span<std::byte> bytes) {
  if (!bytes.empty()) g_set_memory(bytes.data(), 0, bytes.size());
}

Status RandomBytes(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n_bytes = getrandom(bytes.data(), bytes.size(), 0);
    if (n_bytes < 0 && errno == EINTR) continue;
    if (n_bytes <= 0) return StatusFromErrno(errno, "the system gives no random bytes for a key");
    bytes = bytes.subspan(static_cast<size_t>(n_bytes));
  }
  return Status::Ok();
}

Result<SecretKey> SecretKey::Random() {
  SecretKey key;
  KVRUN_RETURN_IF_ERROR(RandomBytes(key.bytes()));
  return key;
}

SecretKey::SecretKey() : bytes_(KeyMemoryHere().Take()) {}

SecretKey::SecretKey(std::span<const std::byte, kBytes> bytes) : SecretKey() {
  std::copy(bytes.begin(), bytes.end(), bytes_);
}

SecretKey::SecretKey(SecretKey&& other) noexcept : SecretKey() { *this = std::move(other); }

SecretKey& SecretKey::operator=(SecretKey&& other) noexcept {
  if (this == &other) return *this;
  std::copy(other.bytes_, other.bytes_ + kBytes, bytes_);
  Wipe(other.bytes());
  return *this;
}

SecretKey::~SecretKey() {
  Wipe(bytes());
  KeyMemoryHere().GiveBack(bytes_);
}

bool operator==(const SecretKey& a, const SecretKey& b) {
  // Not memcmp, which ends at the first difference.
  volatile unsigned different = 0;
  for (size_t i = 0; i < SecretKey::kBytes; ++i)
    different = different | std::to_integer<unsigned>(a.bytes_[i] ^ b.bytes_[i]);
  return different == 0;
}

}  // namespace kvrun
