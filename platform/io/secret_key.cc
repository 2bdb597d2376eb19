#include "platform/io/secret_key.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kvrun {
namespace {

// Which function it is, is read anew for each call: so no compiler knows what it does. (OpenSSL's
// OPENSSL_cleanse is made so, too; this one is there in every build.)
void* (*const volatile g_set_memory)(void*, int, size_t) = std::memset;

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

SecretKey::SecretKey(std::span<const std::byte, kBytes> bytes) {
  std::copy(bytes.begin(), bytes.end(), bytes_);
}

SecretKey::SecretKey(SecretKey&& other) noexcept { *this = std::move(other); }

SecretKey& SecretKey::operator=(SecretKey&& other) noexcept {
  if (this == &other) return *this;
  std::copy(other.bytes_, other.bytes_ + kBytes, bytes_);
  Wipe(other.bytes_);
  return *this;
}

SecretKey::~SecretKey() { Wipe(bytes_); }

bool operator==(const SecretKey& a, const SecretKey& b) {
  // Not memcmp, which ends at the first difference.
  volatile unsigned different = 0;
  for (size_t i = 0; i < SecretKey::kBytes; ++i)
    different = different | std::to_integer<unsigned>(a.bytes_[i] ^ b.bytes_[i]);
  return different == 0;
}

}  // namespace kvrun
