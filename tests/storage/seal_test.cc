// Not grouped: its names are others', too.
// Encryption of records: published vectors, and that whatever is changed is found.
#include "platform/io/seal.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/sanitized.h"

#ifndef KVRUN_WITHOUT_OPENSSL
#include <openssl/crypto.h>
#include <openssl/err.h>
#endif

namespace kvrun::testing {
namespace {

using Bytes = std::vector<std::byte>;

Bytes FromHex(std::string_view hex) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

SecretKey KeyOf(const Bytes& bytes) {
  KVRUN_CHECK(bytes.size() == SecretKey::kBytes);
  return SecretKey(std::span<const std::byte, SecretKey::kBytes>(bytes));
}

SecretKey PatternKey(uint64_t version) {
  Bytes bytes(SecretKey::kBytes);
  FillPattern(bytes, 0, version);
  return KeyOf(bytes);
}

TEST(SecretKey, IsWipedWhereItEnds) {
  static_assert(!std::is_copy_constructible_v<SecretKey> && !std::is_copy_assignable_v<SecretKey>);
  const Bytes bytes = FromHex("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
  const std::byte* memory = nullptr;  // which stays the process's
  {
    const SecretKey key = KeyOf(bytes);
    memory = key.bytes().data();
    EXPECT_EQ(std::memcmp(memory, bytes.data(), bytes.size()), 0);
  }
  EXPECT_EQ(std::count(memory, memory + SecretKey::kBytes, std::byte{0}), 32);
  EXPECT_TRUE(SecretKey() == KeyOf(Bytes(32)));
}

// What the system says of the memory that a key lies in: locked, where so much may be, and in no core dump.
TEST(SecretKey, LiesWhereItIsNotSwappedOut) {
  std::vector<SecretKey> many(2000);
  rlimit most{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &most), 0);
  for (const SecretKey* key : {&many.front(), &many.back()}) {
    const auto address = reinterpret_cast<uintptr_t>(key->bytes().data());
    std::ifstream maps("/proc/self/smaps");
    std::string flags;
    bool is_here = false;
    for (std::string line; std::getline(maps, line) && flags.empty();) {
      uintptr_t begin = 0;
      uintptr_t end = 0;
      if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2)
        is_here = begin <= address && address < end;
      if (is_here && line.starts_with("VmFlags:")) flags = line + " ";
    }
    if (flags.empty()) GTEST_SKIP() << "this system does not say";
    EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
    // Sanitizers leave mlock out.
    if (kIsSanitized) continue;
    EXPECT_TRUE(flags.find(" lo ") != std::string::npos || most.rlim_cur < (1U << 20)) << flags;
  }
}

TEST(SecretKey, IsWipedWhereItIsMovedFrom) {
  SecretKey first = PatternKey(1);
  SecretKey second = std::move(first);
  EXPECT_TRUE(second == PatternKey(1));
  EXPECT_TRUE(first == SecretKey());  // NOLINT(bugprone-use-after-move)
  first = std::move(second);
  EXPECT_TRUE(first == PatternKey(1));
  EXPECT_TRUE(second == SecretKey());  // NOLINT(bugprone-use-after-move)
  SecretKey& itself = first;
  first = std::move(itself);
  EXPECT_TRUE(first == PatternKey(1));
}

TEST(SecretKey, OneBitMakesAnother) {
  const SecretKey key = PatternKey(1);
  for (size_t i = 0; i < 8 * SecretKey::kBytes; ++i) {
    SecretKey other = PatternKey(1);
    other.bytes()[i / 8] ^= std::byte{1} << (i % 8);
    EXPECT_FALSE(key == other);
  }
  EXPECT_FALSE(OrDie(SecretKey::Random()) == OrDie(SecretKey::Random()));
}

TEST(RandomBytes, FillsAllOfIt) {
  Bytes bytes(100'000);
  ASSERT_TRUE(RandomBytes(bytes).ok());
  std::array<int, 256> counts{};
  for (const std::byte b : bytes) ++counts[std::to_integer<size_t>(b)];
  // 391 of each are expected, give or take 20: ten times that never happens.
  for (const int count : counts) EXPECT_NEAR(count, 391, 200);
  ASSERT_TRUE(RandomBytes({}).ok());
}

TEST(Nonce, DiffersWhereANumberDoes) {
  EXPECT_EQ(
      MakeNonce(0x04030201, 0x0c0b0a0908070605).bytes,
      (std::array{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}, std::byte{6},
                  std::byte{7}, std::byte{8}, std::byte{9}, std::byte{10}, std::byte{11}, std::byte{12}}));
  for (int bit = 0; bit < 32; ++bit) EXPECT_NE(MakeNonce(1U << bit, 0).bytes, MakeNonce(0, 0).bytes);
  for (int bit = 0; bit < 64; ++bit) EXPECT_NE(MakeNonce(0, 1ULL << bit).bytes, MakeNonce(0, 0).bytes);
}

TEST(Cipher, IsThatOfTheProcessor) {
  EXPECT_EQ(PreferredCipher(), HasAesInstructions() ? Cipher::kAes256Gcm : Cipher::kChaCha20Poly1305);
  EXPECT_EQ(CipherName(Cipher::kAes256Gcm), "AES-256-GCM");
  EXPECT_EQ(CipherName(Cipher::kChaCha20Poly1305), "ChaCha20-Poly1305");
  EXPECT_EQ(CipherName(static_cast<Cipher>(7)), "unknown");
}

#ifdef KVRUN_WITHOUT_OPENSSL

TEST(Seal, IsNotInThisBuild) {
  const std::array<std::byte, kSaltBytes> salt{};
  EXPECT_EQ(CheckEncryption().code(), StatusCode::kUnsupported);
  EXPECT_NE(CheckEncryption().message().find("KVRUN_OPENSSL"), std::string::npos);
  EXPECT_EQ(DeriveKey(PatternKey(1), salt, "records").status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(MakeKeyCheck(PatternKey(1), salt).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(Sealer::Create(Cipher::kAes256Gcm, PatternKey(1)).status().code(), StatusCode::kUnsupported);
}

#else

// What OpenSSL allocates. It takes other functions only before it has allocated anything.
std::atomic<uint64_t> g_openssl_allocations;

void* CountedAllocate(size_t size, const char*, int) {
  ++g_openssl_allocations;
  return std::malloc(size);
}
void* CountedReallocate(void* memory, size_t size, const char*, int) {
  ++g_openssl_allocations;
  return std::realloc(memory, size);
}
void FreeCounted(void* memory, const char*, int) { std::free(memory); }

const bool g_counts_openssl = CRYPTO_set_mem_functions(CountedAllocate, CountedReallocate, FreeCounted) == 1;

Bytes FromText(std::string_view text) {
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

struct Vector {
  Cipher cipher;
  Bytes key, nonce, associated, plain, sealed, tag;
};

std::vector<Vector> PublishedVectors() {
  return {
      // McGrew and Viega, "The Galois/Counter Mode of Operation", test cases 13, 14 and 16 (NIST's proposal).
      {Cipher::kAes256Gcm, Bytes(32), Bytes(12), {}, {}, {}, FromHex("530f8afbc74536b9a963b4f1c4cb738b")},
      {Cipher::kAes256Gcm,
       Bytes(32),
       Bytes(12),
       {},
       Bytes(16),
       FromHex("cea7403d4d606b6e074ec5d3baf39d18"),
       FromHex("d0d1c8a799996bf0265b98b5d48ab919")},
      {Cipher::kAes256Gcm, FromHex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"),
       FromHex("cafebabefacedbaddecaf888"), FromHex("feedfacedeadbeeffeedfacedeadbeefabaddad2"),
       FromHex(
           "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525"
           "b16aedf5aa0de657ba637b39"),
       FromHex(
           "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838"
           "c5f61e6393ba7a0abcc9f662"),
       FromHex("76fc6ece0f4e1768cddf8853bb2d551b")},
      // RFC 8439, 2.8.2.
      {Cipher::kChaCha20Poly1305, FromHex("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"),
       FromHex("070000004041424344454647"), FromHex("50515253c0c1c2c3c4c5c6c7"),
       FromText("Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
                "sunscreen would be it."),
       FromHex(
           "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b"
           "1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
           "3ff4def08e4b7a9de576d26586cec64b6116"),
       FromHex("1ae10b594f09e26a7e902ecbd0600691")},
  };
}

TEST(Seal, AgreesWithPublishedVectors) {
  for (const Vector& v : PublishedVectors()) {
    Sealer sealer = OrDie(Sealer::Create(v.cipher, KeyOf(v.key)));
    Nonce nonce;
    std::copy(v.nonce.begin(), v.nonce.end(), nonce.bytes.begin());
    for (int i = 0; i < 2; ++i) {  // again with the same contexts
      Bytes sealed(v.plain.size()), plain(v.plain.size());
      std::array<std::byte, kTagBytes> tag{};
      ASSERT_TRUE(sealer.Seal(nonce, v.associated, v.plain, sealed, tag).ok());
      EXPECT_TRUE(sealed == v.sealed) << CipherName(v.cipher);
      EXPECT_TRUE(std::equal(tag.begin(), tag.end(), v.tag.begin())) << CipherName(v.cipher);
      ASSERT_TRUE(sealer.Open(nonce, v.associated, sealed, plain, tag).ok());
      EXPECT_TRUE(plain == v.plain);
    }
  }
}

// RFC 8448 (a trace of TLS 1.3), 3: the secret of a handshake is extracted from a key with a salt, both of 32
// bytes, and what "derive secret for master" answers is expanded from it: one HKDF-SHA256.
TEST(DeriveKey, AgreesWithAPublishedVector) {
  const SecretKey key = KeyOf(FromHex("8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d"));
  const Bytes salt = FromHex("6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba");
  const Bytes info = FromHex(
      "00200d746c7331332064657269766564"
      "20e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::string purpose(reinterpret_cast<const char*>(info.data()), info.size());
  const SecretKey derived = OrDie(DeriveKey(key, std::span<const std::byte, kSaltBytes>(salt), purpose));
  EXPECT_TRUE(derived == KeyOf(FromHex("43de77e0c77713859a944db9db2590b53190a65b3ee2e4f12dd7a0bb7ce254b4")));
}

TEST(DeriveKey, IsAnotherForEachKeySaltAndPurpose) {
  std::array<std::byte, kSaltBytes> salt{}, other_salt{};
  other_salt[31] = std::byte{1};
  const SecretKey key = OrDie(DeriveKey(PatternKey(1), salt, "records"));
  EXPECT_TRUE(key == OrDie(DeriveKey(PatternKey(1), salt, "records")));
  EXPECT_FALSE(key == OrDie(DeriveKey(PatternKey(2), salt, "records")));
  EXPECT_FALSE(key == OrDie(DeriveKey(PatternKey(1), other_salt, "records")));
  EXPECT_FALSE(key == OrDie(DeriveKey(PatternKey(1), salt, "record")));
  EXPECT_FALSE(key == PatternKey(1));
  EXPECT_TRUE(DeriveKey(PatternKey(1), salt, std::string(1024, 'a')).ok());
  EXPECT_DEATH((void)DeriveKey(PatternKey(1), salt, ""), "purpose");
  EXPECT_DEATH((void)DeriveKey(PatternKey(1), salt, "kvrun key check"), "purpose");
}

TEST(KeyCheck, TellsKeysApart) {
  std::array<std::byte, kSaltBytes> salt{}, other_salt{};
  other_salt[0] = std::byte{1};
  const KeyCheck check = OrDie(MakeKeyCheck(PatternKey(1), salt));
  EXPECT_EQ(check, OrDie(MakeKeyCheck(PatternKey(1), salt)));
  EXPECT_NE(check, OrDie(MakeKeyCheck(PatternKey(2), salt)));
  EXPECT_NE(check,
            OrDie(MakeKeyCheck(PatternKey(1), other_salt)));  // two files do not show that they share one
  const SecretKey derived = OrDie(DeriveKey(PatternKey(1), salt, "kvrun key check 2"));
  EXPECT_FALSE(std::equal(check.begin(), check.end(), derived.bytes().begin()));
}

class SealTest : public ::testing::TestWithParam<Cipher> {
 protected:
  Sealer Make(uint64_t key = 1) const { return OrDie(Sealer::Create(GetParam(), PatternKey(key))); }

  Bytes associated_ = FromText("file 7, layer 3, stream 1");
  Nonce nonce_ = MakeNonce(5, 6);
  std::array<std::byte, kTagBytes> tag_{};
};

INSTANTIATE_TEST_SUITE_P(Ciphers, SealTest, ::testing::Values(Cipher::kAes256Gcm, Cipher::kChaCha20Poly1305),
                         [](const auto& one) { return one.param == Cipher::kAes256Gcm ? "Aes" : "ChaCha"; });

std::vector<size_t> Sizes() {
  std::vector<size_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), size_t{0});
  for (size_t size = 512; size <= 64 * 1024; size *= 2)
    for (const size_t around : {size - 1, size, size + 1}) sizes.push_back(around);
  for (const size_t size : {1500, 1536, 3072, 12288, 49152}) sizes.push_back(size);
  return sizes;
}

// One sealer for all sizes, in an order that goes up and down, and each time a fresh one that agrees with it.
TEST_P(SealTest, WhatIsSealedIsOpened) {
  Sealer sealer = Make();
  std::vector<size_t> sizes = Sizes();
  for (size_t i = 1; i < sizes.size(); i += 2) std::swap(sizes[i], sizes[sizes.size() - i]);
  for (const size_t size : sizes) {
    Bytes plain(size), sealed(size), opened(size, std::byte{0xcd});
    FillPattern(plain, 0, size);
    const Nonce nonce = MakeNonce(1, size);
    const auto associated = std::span(associated_).first(size % (associated_.size() + 1));
    ASSERT_TRUE(sealer.Seal(nonce, associated, plain, sealed, tag_).ok());
    EXPECT_TRUE(size < 16 || sealed != plain);
    ASSERT_TRUE(sealer.Open(nonce, associated, sealed, opened, tag_).ok()) << size;
    ASSERT_TRUE(opened == plain) << size;

    Bytes in_place = plain;
    std::array<std::byte, kTagBytes> tag{};
    Sealer fresh = Make();
    ASSERT_TRUE(fresh.Seal(nonce, associated, in_place, in_place, tag).ok());
    ASSERT_TRUE(in_place == sealed && tag == tag_) << size;
    ASSERT_TRUE(fresh.Open(nonce, associated, in_place, in_place, tag).ok());
    ASSERT_TRUE(in_place == plain) << size;
  }
}

TEST_P(SealTest, EachFlippedBitIsFound) {
  Sealer sealer = Make();
  Bytes plain(21), sealed(21);
  FillPattern(plain, 0);
  ASSERT_TRUE(sealer.Seal(nonce_, associated_, plain, sealed, tag_).ok());
  const auto fails = [&] {
    Bytes opened(sealed.size(), std::byte{0xcd});
    const Status status = sealer.Open(nonce_, associated_, sealed, opened, tag_);
    return status.code() == StatusCode::kCorrupt && opened == Bytes(sealed.size());
  };
  for (const std::span<std::byte> part :
       {std::span<std::byte>(sealed), std::span<std::byte>(tag_), std::span<std::byte>(associated_),
        std::span<std::byte>(nonce_.bytes)}) {
    for (size_t bit = 0; bit < 8 * part.size(); ++bit) {
      part[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_TRUE(fails()) << bit << " of " << part.size() << " bytes";
      part[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
  Bytes opened(sealed.size());
  EXPECT_TRUE(sealer.Open(nonce_, associated_, sealed, opened, tag_).ok()) << "after all those failures";
  EXPECT_TRUE(opened == plain);
  for (size_t bit = 0; bit < 8 * SecretKey::kBytes; ++bit) {
    SecretKey key = PatternKey(1);
    key.bytes()[bit / 8] ^= std::byte{1} << (bit % 8);
    Sealer other = OrDie(Sealer::Create(GetParam(), key));
    EXPECT_EQ(other.Open(nonce_, associated_, sealed, opened, tag_).code(), StatusCode::kCorrupt);
  }
  EXPECT_EQ(ERR_peek_error(), 0U) << "errors stay for a program that uses OpenSSL, too";
}

TEST_P(SealTest, WhatIsCutOrLongerIsFound) {
  Sealer sealer = Make();
  Bytes plain(100), sealed(100);
  ASSERT_TRUE(sealer.Seal(nonce_, associated_, plain, sealed, tag_).ok());
  sealed.push_back({});
  for (size_t size = 0; size <= sealed.size(); ++size) {
    Bytes opened(size, std::byte{0xcd});
    const Status status = sealer.Open(nonce_, associated_, std::span(sealed).first(size), opened, tag_);
    EXPECT_EQ(status.ok(), size == 100);
  }
  for (size_t size = 0; size < associated_.size(); ++size) {
    EXPECT_FALSE(
        sealer.Open(nonce_, std::span(associated_).first(size), std::span(sealed).first(100), plain, tag_)
            .ok());
  }
}

// Also where it takes the place of what was sealed, and is of many blocks.
TEST_P(SealTest, NothingIsHandedOutWhereTheTagIsWrong) {
  Sealer sealer = Make();
  Bytes memory(12'345);
  FillPattern(memory, 0);
  ASSERT_TRUE(sealer.Seal(nonce_, associated_, memory, memory, tag_).ok());
  tag_[0] ^= std::byte{1};
  const Status status = sealer.Open(nonce_, associated_, memory, memory, tag_);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("tag is wrong"), std::string::npos);
  EXPECT_TRUE(memory == Bytes(memory.size()));
}

TEST_P(SealTest, ARecordAllocatesNothing) {
  ASSERT_TRUE(g_counts_openssl);
  const uint64_t before_making = g_openssl_allocations;
  Sealer sealer = Make();
  EXPECT_GT(g_openssl_allocations, before_making) << "they are not counted";
  Bytes memory(49'152);
  const auto use = [&](size_t size, uint64_t count) {
    const std::span<std::byte> record = std::span(memory).first(size);
    const Nonce nonce = MakeNonce(0, count);
    return sealer.Seal(nonce, associated_, record, record, tag_).ok() &&
           sealer.Open(nonce, associated_, record, record, tag_).ok();
  };
  ASSERT_TRUE(use(100, 0));
  const uint64_t openssl = g_openssl_allocations;
  const uint64_t own = CurrentHeapUse().n_allocations;
  bool all = true;
  for (uint64_t i = 1; i < 200; ++i) all = use(1536 + 100 * i, i) && all;
  EXPECT_TRUE(all);
  EXPECT_EQ(g_openssl_allocations, openssl);
  EXPECT_EQ(CurrentHeapUse().n_allocations, own);
}

TEST_P(SealTest, AnotherKeyIsSetWithoutAnAllocation) {
  Sealer sealer = Make(1);
  Sealer other = Make(2);
  const SecretKey first = PatternKey(1);
  const SecretKey second = PatternKey(2);
  Bytes plain(3000), sealed(3000), opened(3000);
  FillPattern(plain, 0);
  ASSERT_TRUE(sealer.Seal(nonce_, associated_, plain, sealed, tag_).ok());
  ASSERT_TRUE(other.SetKey(first).ok());
  const uint64_t openssl = g_openssl_allocations;
  const uint64_t own = CurrentHeapUse().n_allocations;
  bool all = true;
  for (int i = 0; i < 10; ++i) {
    all = other.SetKey(second).ok() && other.SetKey(first).ok() &&
          other.Open(nonce_, associated_, sealed, opened, tag_).ok() && opened == plain && all;
  }
  EXPECT_TRUE(all);
  EXPECT_EQ(g_openssl_allocations, openssl);
  EXPECT_EQ(CurrentHeapUse().n_allocations, own);
  ASSERT_TRUE(other.SetKey(second).ok());
  EXPECT_EQ(other.Open(nonce_, associated_, sealed, opened, tag_).code(), StatusCode::kCorrupt);
  Bytes again(3000);
  std::array<std::byte, kTagBytes> tag{};
  ASSERT_TRUE(other.SetKey(first).ok());
  ASSERT_TRUE(other.Seal(nonce_, associated_, plain, again, tag).ok());
  EXPECT_TRUE(again == sealed && tag == tag_);
}

TEST_P(SealTest, ThreadsShareAKey) {
  constexpr uint32_t kThreads = 2;
  constexpr uint64_t kRecords = kIsSanitized ? 100 : 500;
  constexpr size_t kRecordBytes = 3072;
  const SecretKey key = PatternKey(1);
  std::vector<Bytes> records(kThreads, Bytes(kRecords * kRecordBytes));
  std::vector<std::vector<std::array<std::byte, kTagBytes> > > tags(
      kThreads, std::vector<std::array<std::byte, kTagBytes> >(kRecords));
  // What one has sealed the other opens.
  for (const bool seals : {true, false}) {
    std::vector<std::thread> threads;
    std::atomic<uint64_t> n_good = 0;
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        const uint32_t place = seals ? thread : kThreads - 1 - thread;
        Sealer sealer = OrDie(Sealer::Create(GetParam(), key));
        for (uint64_t i = 0; i < kRecords; ++i) {
          const auto record = std::span(records[place]).subspan(i * kRecordBytes, kRecordBytes);
          const Nonce nonce = MakeNonce(place, i);
          if (seals) {
            FillPattern(record, i, place);
            n_good += sealer.Seal(nonce, associated_, record, record, tags[place][i]).ok() ? 1 : 0;
          } else {
            const bool opened = sealer.Open(nonce, associated_, record, record, tags[place][i]).ok();
            n_good += opened && HoldsPattern(record, i, place) ? 1 : 0;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(n_good, kThreads * kRecords);
  }
}

TEST_P(SealTest, MovedItGoesOn) {
  Sealer first = Make();
  Sealer second = std::move(first);
  Bytes plain(10), sealed(10), opened(10, std::byte{1});
  ASSERT_TRUE(second.Seal(nonce_, associated_, plain, sealed, tag_).ok());
  first = Make(2);
  EXPECT_EQ(first.Open(nonce_, associated_, sealed, opened, tag_).code(), StatusCode::kCorrupt);
  first = std::move(second);
  EXPECT_TRUE(first.Open(nonce_, associated_, sealed, opened, tag_).ok());
  EXPECT_EQ(first.cipher(), GetParam());
}

TEST_P(SealTest, TooMuchIsRefused) {
  Sealer sealer = Make();
  std::byte byte{1};
  const std::span<std::byte> too_much(&byte, Sealer::kMaxBytes + 1);  // never touched
  EXPECT_EQ(sealer.Seal(nonce_, {}, too_much, too_much, tag_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sealer.Open(nonce_, {}, too_much, too_much, tag_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sealer.Seal(nonce_, too_much, {}, {}, tag_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(byte, std::byte{1});
}

TEST(Seal, AnUnknownCipherIsRefused) {
  for (const int number : {0, 3, 255}) {
    const Status status = Sealer::Create(static_cast<Cipher>(number), PatternKey(1)).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("cipher " + std::to_string(number)), std::string::npos);
  }
}

#endif

}  // namespace
}  // namespace kvrun::testing
