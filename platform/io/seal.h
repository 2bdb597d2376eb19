// Encryption of what lies on flash: a seal for each record, which is found broken where anything of the
// record was changed, and the keys that are derived for it. By OpenSSL (AES-256-GCM, ChaCha20-Poly1305,
// HKDF-SHA256). A build without it (KVRUN_OPENSSL=OFF) has all of this, and answers kUnsupported.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "platform/base/status.h"
#include "platform/io/secret_key.h"

namespace kvrun {

// As files name them: a number is never given to another.
enum class Cipher : uint8_t { kAes256Gcm = 1, kChaCha20Poly1305 = 2 };

std::string_view CipherName(Cipher cipher);  // "AES-256-GCM"

// Whether the processor has what makes AES-GCM fast, and the time it takes independent of the key.
bool HasAesInstructions();

// AES where the processor has instructions for it: it is the faster one there, by far the slower one
// elsewhere.
Cipher PreferredCipher();

// Ok, or why this build cannot encrypt.
Status CheckEncryption();

inline constexpr size_t kSaltBytes = 32;
inline constexpr size_t kNonceBytes = 12;
inline constexpr size_t kTagBytes = 16;
inline constexpr size_t kKeyCheckBytes = 16;

// Another key, which tells nothing of `key`, nor of what is derived with another salt or for another purpose.
// The purpose has 1 to 1024 bytes, and begins differently for each use. HKDF-SHA256 (RFC 5869): `purpose` is
// its "info". Any thread.
Result<SecretKey> DeriveKey(const SecretKey& key, std::span<const std::byte, kSaltBytes> salt,
                            std::string_view purpose);

// What a file holds beside its salt, in the clear, to tell "this is under another key" from "this is broken".
// It tells nothing else of the key: it is derived, for a purpose of its own, which DeriveKey refuses.
using KeyCheck = std::array<std::byte, kKeyCheckBytes>;
Result<KeyCheck> MakeKeyCheck(const SecretKey& key, std::span<const std::byte, kSaltBytes> salt);

// With one key a nonce must be used once: where two records have the same, who reads both knows how they
// differ, and with AES-GCM can make others.
struct Nonce {
  std::array<std::byte, kNonceBytes> bytes = {};
};

// The nonces of two calls differ where a number does. So none ever repeats, where
// - the key is derived anew, with 32 random bytes (RandomBytes), each time that files are opened for writing.
//   What an earlier opening wrote, or wrote before the machine lost its power, or what an older copy of the
//   disk holds, was under another key. So no count has to outlive the process.
// - within an opening, whoever writes has places of its own, counts there from 0, and takes the next number
//   for each record, also where it writes the same record again: after an error, or because it has changed.
//   `place` is what counts by itself: a stream, a layer or a thread. 64 bits do not run out: at a thousand
//   million records a second they last for 584 years.
// Readers need both numbers: they are no secret, and lie beside the record or follow from where it lies.
Nonce MakeNonce(uint32_t place, uint64_t count);

// Seals and opens with one key: what it needs is made with it, so that a record costs neither an allocation
// nor a key's preparation. One thread at a time; threads that share a key have a sealer of their own each.
// Moved, never copied. What it was moved from may only be destroyed or assigned to. Its copy of the key is
// wiped with it.
class Sealer {
 public:
  // Of one call. More is kInvalidArgument, and nothing is touched.
  static constexpr size_t kMaxBytes = size_t{1} << 30;

  // kUnsupported where this build or its OpenSSL has no such cipher: `cipher` may be any number of a file.
  static Result<Sealer> Create(Cipher cipher, const SecretKey& key);

  Sealer(Sealer&& other) noexcept;
  Sealer& operator=(Sealer&& other) noexcept;
  Sealer(const Sealer&) = delete;
  Sealer& operator=(const Sealer&) = delete;
  ~Sealer();

  Cipher cipher() const { return cipher_; }

  // Another key from now on, without an allocation. Where it fails, neither key may be used any more: it is
  // set anew, or the sealer goes.
  Status SetKey(const SecretKey& key);

  // `sealed` has the size of `plain`, and is the same memory or apart from it. `associated` is not written,
  // and is to be the same when the record is opened: what the record is and where it belongs. Where it fails
  // otherwise, `sealed` holds zeros.
  Status Seal(const Nonce& nonce, std::span<const std::byte> associated, std::span<const std::byte> plain,
              std::span<std::byte> sealed, std::span<std::byte, kTagBytes> tag);

  // The same back: `plain` has the size of `sealed`, and is the same memory or apart from it. kCorrupt where
  // anything is not as it was sealed: the bytes, the tag, `associated`, the nonce or the key. Where it fails,
  // `plain` holds zeros: nothing of it is handed out.
  Status Open(const Nonce& nonce, std::span<const std::byte> associated, std::span<const std::byte> sealed,
              std::span<std::byte> plain, std::span<const std::byte, kTagBytes> tag);

 private:
  struct Contexts;
  Sealer(Cipher cipher, std::unique_ptr<Contexts> contexts);

  Cipher cipher_;
  std::unique_ptr<Contexts> contexts_;
};

}  // namespace kvrun
