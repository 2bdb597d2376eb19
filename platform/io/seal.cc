// Not grouped: its names are others', too.
#include "platform/io/seal.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "platform/base/check.h"

#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#ifndef KVRUN_WITHOUT_OPENSSL
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#endif

namespace kvrun {
std::string_view CipherName(Cipher cipher) {
  switch (cipher) {
    case Cipher::kAes256Gcm: return "AES-256-GCM";
    case Cipher::kChaCha20Poly1305: return "ChaCha20-Poly1305";
  }
  return "unknown";
}

bool HasAesInstructions() {
  // GCM needs the product of polynomials, too.
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0;
#elif defined(__aarch64__)
  constexpr unsigned long kNeeded = HWCAP_AES | HWCAP_PMULL;
  return (getauxval(AT_HWCAP) & kNeeded) == kNeeded;
#else
  return false;
#endif
}

Cipher PreferredCipher() { return HasAesInstructions() ? Cipher::kAes256Gcm : Cipher::kChaCha20Poly1305; }

Nonce MakeNonce(uint32_t place, uint64_t count) {
  Nonce nonce;
  for (size_t i = 0; i < 4; ++i) nonce.bytes[i] = static_cast<std::byte>(place >> (8 * i));
  for (size_t i = 0; i < 8; ++i) nonce.bytes[4 + i] = static_cast<std::byte>(count >> (8 * i));
  return nonce;
}

#ifdef KVRUN_WITHOUT_OPENSSL

struct Sealer::Contexts {};

Status CheckEncryption() {
  return {StatusCode::kUnsupported,
          "this kvrun cannot encrypt what it keeps on flash: it was built without OpenSSL; install "
          "libssl-dev and build it with -DKVRUN_OPENSSL=ON"};
}

Result<SecretKey> DeriveKey(const SecretKey&, std::span<const std::byte, kSaltBytes>, std::string_view) {
  return CheckEncryption();
}

Result<KeyCheck> MakeKeyCheck(const SecretKey&, std::span<const std::byte, kSaltBytes>) {
  return CheckEncryption();
}

Result<Sealer> Sealer::Create(Cipher, const SecretKey&) { return CheckEncryption(); }

Status Sealer::SetKey(const SecretKey&) { return CheckEncryption(); }

Status Sealer::Seal(const Nonce&, std::span<const std::byte>, std::span<const std::byte>,
                    std::span<std::byte>, std::span<std::byte, kTagBytes>) {
  return CheckEncryption();
}

Status Sealer::Open(const Nonce&, std::span<const std::byte>, std::span<const std::byte>,
                    std::span<std::byte>, std::span<const std::byte, kTagBytes>) {
  return CheckEncryption();
}

#else

namespace {

constexpr std::string_view kKeyCheckPurpose = "kvrun key check";
constexpr size_t kMaxPurposeBytes = 1024;  // of OpenSSL's HKDF

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }  // wipes the key
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

unsigned char* Bytes(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* Bytes(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

// OpenSSL keeps a list of what went wrong for each thread, which a program that uses it, too, is not to find.
std::string TakeReason() {
  char text[256] = "no reason is given";
  if (const unsigned long error = ERR_peek_last_error(); error != 0)
    ERR_error_string_n(error, text, sizeof text);
  ERR_clear_error();
  return text;
}

Status Failed(std::string_view what) {
  return {StatusCode::kInternal, fmt::format("OpenSSL failed to {}: {}", what, TakeReason())};
}

Result<Context> MakeContext(Cipher cipher, const SecretKey& key, bool seals) {
  const std::string name(CipherName(cipher));
  const std::unique_ptr<EVP_CIPHER, decltype(&EVP_CIPHER_free)> method(
      EVP_CIPHER_fetch(nullptr, name.c_str(), nullptr), &EVP_CIPHER_free);
  if (method == nullptr) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("this machine's OpenSSL has no {} ({}): see its configuration, openssl.cnf",
                              name, TakeReason()));
  }
  KVRUN_CHECK(EVP_CIPHER_get_key_length(method.get()) == static_cast<int>(SecretKey::kBytes));
  KVRUN_CHECK(EVP_CIPHER_get_iv_length(method.get()) == static_cast<int>(kNonceBytes));
  Context context(EVP_CIPHER_CTX_new());
  if (context == nullptr) return Failed("make room for a key");
  if (EVP_CipherInit_ex2(context.get(), method.get(), Bytes(key.bytes().data()), nullptr, seals ? 1 : 0,
                         nullptr) != 1) {
    return Failed("prepare a key");
  }
  return context;
}

// All but the tag.
bool Cover(EVP_CIPHER_CTX* context, const Nonce& nonce, std::span<const std::byte> associated,
           std::span<const std::byte> from, std::span<std::byte> to) {
  int n_bytes = 0;
  if (EVP_CipherInit_ex2(context, nullptr, nullptr, Bytes(nonce.bytes.data()), -1, nullptr) != 1)
    return false;
  if (!associated.empty() && EVP_CipherUpdate(context, nullptr, &n_bytes, Bytes(associated.data()),
                                              static_cast<int>(associated.size())) != 1) {
    return false;
  }
  if (from.empty()) return true;
  const int size = static_cast<int>(from.size());
  return EVP_CipherUpdate(context, Bytes(to.data()), &n_bytes, Bytes(from.data()), size) == 1 &&
         n_bytes == size;
}

bool Finish(EVP_CIPHER_CTX* context) {
  unsigned char none[kTagBytes];
  int n_bytes = 0;
  return EVP_CipherFinal_ex(context, none, &n_bytes) == 1 && n_bytes == 0;
}

Status CheckSizes(std::span<const std::byte> associated, std::span<const std::byte> from,
                  std::span<std::byte> to) {
  KVRUN_CHECK(from.size() == to.size());
  if (from.size() <= Sealer::kMaxBytes && associated.size() <= Sealer::kMaxBytes) return Status::Ok();
  return {StatusCode::kInvalidArgument, "more than 1 GiB cannot be sealed as one record"};
}

Result<SecretKey> Derive(const SecretKey& key, std::span<const std::byte, kSaltBytes> salt,
                         std::string_view purpose) {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> method(EVP_KDF_fetch(nullptr, "HKDF", nullptr),
                                                                 &EVP_KDF_free);
  if (method == nullptr) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("this machine's OpenSSL derives no keys (HKDF, {}): see its configuration, "
                              "openssl.cnf",
                              TakeReason()));
  }
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(method.get()),
                                                                          &EVP_KDF_CTX_free);
  if (context == nullptr) return Failed("make room for a key");
  // It reads all of these, and writes none.
  const auto octets = [](const char* name, const void* bytes, size_t size) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<void*>(bytes), size);
  };
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      octets(OSSL_KDF_PARAM_KEY, key.bytes().data(), key.bytes().size()),
      octets(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
      octets(OSSL_KDF_PARAM_INFO, purpose.data(), purpose.size()),
      OSSL_PARAM_construct_end(),
  };
  SecretKey derived;
  if (EVP_KDF_derive(context.get(), Bytes(derived.bytes().data()), SecretKey::kBytes, parameters) != 1)
    return Failed("derive a key");
  return derived;
}

}  // namespace

struct Sealer::Contexts {
  Context seal;
  Context open;
};

Status CheckEncryption() { return Status::Ok(); }

Result<SecretKey> DeriveKey(const SecretKey& key, std::span<const std::byte, kSaltBytes> salt,
                            std::string_view purpose) {
  KVRUN_CHECK(!purpose.empty() && purpose.size() <= kMaxPurposeBytes && purpose != kKeyCheckPurpose);
  return Derive(key, salt, purpose);
}

Result<KeyCheck> MakeKeyCheck(const SecretKey& key, std::span<const std::byte, kSaltBytes> salt) {
  KVRUN_ASSIGN_OR_RETURN(const SecretKey derived, Derive(key, salt, kKeyCheckPurpose));
  KeyCheck check;
  std::copy_n(derived.bytes().begin(), check.size(), check.begin());
  return check;
}

Result<Sealer> Sealer::Create(Cipher cipher, const SecretKey& key) {
  if (cipher != Cipher::kAes256Gcm && cipher != Cipher::kChaCha20Poly1305) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("cipher {} is not known to this kvrun: a newer one may "
                              "read what was written with it",
                              static_cast<unsigned>(cipher)));
  }
  auto contexts = std::make_unique<Contexts>();
  KVRUN_ASSIGN_OR_RETURN(contexts->seal, MakeContext(cipher, key, true));
  KVRUN_ASSIGN_OR_RETURN(contexts->open, MakeContext(cipher, key, false));
  return Sealer(cipher, std::move(contexts));
}

Status Sealer::SetKey(const SecretKey& key) {
  const unsigned char* const bytes = Bytes(key.bytes().data());
  if (EVP_CipherInit_ex2(contexts_->seal.get(), nullptr, bytes, nullptr, 1, nullptr) == 1 &&
      EVP_CipherInit_ex2(contexts_->open.get(), nullptr, bytes, nullptr, 0, nullptr) == 1) {
    return Status::Ok();
  }
  return Failed("prepare a key");
}

Status Sealer::Seal(const Nonce& nonce, std::span<const std::byte> associated,
                    std::span<const std::byte> plain, std::span<std::byte> sealed,
                    std::span<std::byte, kTagBytes> tag) {
  KVRUN_RETURN_IF_ERROR(CheckSizes(associated, plain, sealed));
  EVP_CIPHER_CTX* const context = contexts_->seal.get();
  if (Cover(context, nonce, associated, plain, sealed) && Finish(context) &&
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1) {
    return Status::Ok();
  }
  Wipe(sealed);
  return Failed("encrypt a record");
}

Status Sealer::Open(const Nonce& nonce, std::span<const std::byte> associated,
                    std::span<const std::byte> sealed, std::span<std::byte> plain,
                    std::span<const std::byte, kTagBytes> tag) {
  KVRUN_RETURN_IF_ERROR(CheckSizes(associated, sealed, plain));
  EVP_CIPHER_CTX* const context = contexts_->open.get();
  std::array<std::byte, kTagBytes> expected;  // OpenSSL takes no memory that is read only
  std::copy(tag.begin(), tag.end(), expected.begin());
  if (!Cover(context, nonce, associated, sealed, plain) ||
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, expected.data()) != 1) {
    Wipe(plain);
    return Failed("decrypt a record");
  }
  if (Finish(context)) return Status::Ok();
  Wipe(plain);
  ERR_clear_error();
  return {StatusCode::kCorrupt,
          "its tag is wrong: it was changed, or belongs elsewhere, or was written under another key"};
}

#endif

Sealer::Sealer(Cipher cipher, std::unique_ptr<Contexts> contexts)
    : cipher_(cipher), contexts_(std::move(contexts)) {}
Sealer::Sealer(Sealer&& other) noexcept = default;
Sealer& Sealer::operator=(Sealer&& other) noexcept = default;
Sealer::~Sealer() = default;

}  // namespace kvrun
