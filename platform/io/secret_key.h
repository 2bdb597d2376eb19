// A key that nobody is to see: it is wiped when it is no longer needed, and is never printed.
#pragma once

#include <cstddef>
#include <span>

#include "platform/base/status.h"

namespace kvrun {

// Sets all of it to zero, and is not left out by a compiler that finds that nobody reads it again.
void Wipe(std::span<std::byte> bytes);

// Fills all of it with bytes that nobody can foretell, from the system. Any thread.
Status RandomBytes(std::span<std::byte> bytes);

// Moved, never copied; what it was moved from is wiped. Its bytes lie in pages that the system neither swaps
// out (where it lets this process lock so much) nor writes to core dumps. What ciphers make of it does not.
class SecretKey {
 public:
  static constexpr size_t kBytes = 32;

  static Result<SecretKey> Random();

  SecretKey();                                                   // all zeros, to be filled
  explicit SecretKey(std::span<const std::byte, kBytes> bytes);  // the caller wipes those
  SecretKey(SecretKey&& other) noexcept;
  SecretKey& operator=(SecretKey&& other) noexcept;
  SecretKey(const SecretKey&) = delete;
  SecretKey& operator=(const SecretKey&) = delete;
  ~SecretKey();

  std::span<const std::byte, kBytes> bytes() const {
    return std::span<const std::byte, kBytes>(bytes_, kBytes);
  }
  std::span<std::byte, kBytes> bytes() { return std::span<std::byte, kBytes>(bytes_, kBytes); }

  // Takes as long whatever they hold.
  friend bool operator==(const SecretKey& a, const SecretKey& b);

 private:
  std::byte* bytes_;  // its own, as long as it lives
};

}  // namespace kvrun
