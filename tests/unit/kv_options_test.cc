#include "runtime/kv/planner/kv_options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kv/serve/kv_folder.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

std::string ErrorOf(std::string_view name, std::string_view value) {
  KvSettings settings;
  const Status status = SetKvOption(name, value, &settings);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name << " " << value;
  return status.message();
}

KvSettings With(std::string_view name, std::string_view value) {
  KvSettings settings;
  const Status status = SetKvOption(name, value, &settings);
  EXPECT_TRUE(status.ok()) << status.message();
  return settings;
}

TEST(KvOptions, NothingIsSetUnlessSaid) {
  const KvSettings settings;
  EXPECT_EQ(settings.kv.method, "");
  EXPECT_FALSE(settings.kv.budget_bytes || settings.kv.budget_fraction || settings.kv.k_type);
  EXPECT_TRUE(settings.storage.auto_backend);
  EXPECT_EQ(settings.storage.direct, DirectIo::kAuto);
  EXPECT_FALSE(settings.storage.allow_tmpfs);
}

TEST(KvOptions, EveryMethodOfTheTableIsKnown) {
  for (const char* method : {"full", "flexgen", "kvswap"}) {
    EXPECT_EQ(With("method", method).kv.method, method);
  }
}

TEST(KvOptions, ABudgetIsBytesOrAShare) {
  const std::vector<std::pair<const char*, uint64_t>> bytes = {
      {"1", 1},
      {"14155776", 14155776},
      {"16KiB", 16384},
      {"12MiB", 12582912},
      {"13.5MiB", 14155776},
      {"0.5GiB", 536870912},
      {"1.0001KiB", 1024},  // whole bytes, never more than was said
      {"1024GiB", 1099511627776},
  };
  for (const auto& [text, expected] : bytes) {
    const KvOptions options = With("budget", text).kv;
    EXPECT_EQ(options.budget_bytes, expected) << text;
    EXPECT_EQ(options.budget_fraction, std::nullopt) << text;
  }
  EXPECT_EQ(With("budget", "1/13").kv.budget_fraction, 1.0 / 13.0);
  EXPECT_EQ(With("budget", "1/1").kv.budget_fraction, 1.0);
  EXPECT_EQ(With("budget", "3/34").kv.budget_fraction, 3.0 / 34.0);
  EXPECT_EQ(With("budget", "1/13").kv.budget_bytes, std::nullopt);
}

TEST(KvOptions, ABudgetTakesTheUnitsThatPeopleWrite) {
  for (const char* text : {"13M", "13m", "13MB", "13MiB", "13312K", "13312k", "13312KB"})
    EXPECT_EQ(With("budget", text).kv.budget_bytes, 13U << 20) << text;
  EXPECT_EQ(With("budget", "2G").kv.budget_bytes, uint64_t{2} << 30);
  EXPECT_EQ(With("budget", "0.5GB").kv.budget_bytes, uint64_t{1} << 29);
  EXPECT_EQ(With("budget", "50%").kv.budget_fraction, 0.5);
  EXPECT_EQ(With("budget", "12.5%").kv.budget_fraction, 0.125);
  EXPECT_EQ(With("budget", "100%").kv.budget_fraction, 1.0);
  for (const char* bad : {"%", "0%", "-1%", "101%", "nan%", "inf%", "5 %", "1/2%", "50%%", "1M%"})
    EXPECT_NE(ErrorOf("budget", bad), "") << bad;
}

TEST(KvOptions, ALaterBudgetReplacesAnEarlier) {
  KvSettings settings;
  ASSERT_TRUE(SetKvOption("budget", "1MiB", &settings).ok());
  ASSERT_TRUE(SetKvOption("budget", "1/2", &settings).ok());
  EXPECT_EQ(settings.kv.budget_bytes, std::nullopt);
  ASSERT_TRUE(SetKvOption("budget", "5", &settings).ok());
  EXPECT_EQ(settings.kv.budget_fraction, std::nullopt);
  EXPECT_EQ(settings.kv.budget_bytes, 5U);
}

TEST(KvOptions, ABudgetThatMeansNothingIsRefused) {
  for (const char* bad : {"",        "x",         "0.5",
                          "1e9",     "-1",        "+1",
                          " 1",      "1 MiB",     "1TB",
                          "1B",      "1mib",      "MiB",
                          "1,5MiB",  "0x10",      "1/13MiB",
                          "1/13/2",  "1.5/2",     "1/x",
                          "/",       "1/",        "/2",
                          "1/0",     "0/1",       "2/1",
                          "-1/2",    "1/1000001", "99999999999999999999",
                          "1MiBMiB", "nanMiB",    "infGiB"}) {
    const std::string error = ErrorOf("budget", bad);
    EXPECT_NE(error.find("KV option budget: \"" + std::string(bad) + "\""), std::string::npos) << error;
    EXPECT_NE(error.find("1/13"), std::string::npos) << error;
  }
  for (const char* bad : {"0", "0KiB", "0.0001KiB", "-1MiB", "1025GiB", "1099511627777"}) {
    const std::string error = ErrorOf("budget", bad);
    EXPECT_NE(error.find("from 1 byte to 1024.00 GiB"), std::string::npos) << error;
  }
}

TEST(KvOptions, ATypeIsForBothOrForKAndV) {
  const std::vector<std::pair<const char*, KvType>> types = {{"f32", KvType::kF32},
                                                             {"f16", KvType::kF16},
                                                             {"fp8", KvType::kFp8},
                                                             {"int8", KvType::kInt8},
                                                             {"int4", KvType::kInt4}};
  for (const auto& [name, type] : types) {
    EXPECT_EQ(With("type", name).kv.k_type, type);
    EXPECT_EQ(With("type", name).kv.v_type, type);
  }
  const KvOptions pair = With("type", "fp8,int4").kv;
  EXPECT_EQ(pair.k_type, KvType::kFp8);
  EXPECT_EQ(pair.v_type, KvType::kInt4);
  for (const char* bad : {"", "f8", "F16", "f16,", ",f16", "f16,f16,f16", "f16 f16", "f16, f16"}) {
    const std::string error = ErrorOf("type", bad);
    EXPECT_NE(
        error.find("KV option type: \"" + std::string(bad) + "\" is not one of f32, f16, fp8, int8, int4"),
        std::string::npos)
        << error;
  }
}

TEST(KvOptions, CountsHaveBounds) {
  struct Count {
    const char* name;
    std::optional<uint32_t> KvOptions::*field;
    uint32_t least;
    uint32_t most;
  };
  const std::vector<Count> counts = {
      {"group", &KvOptions::group_tokens, 1, 256},
      {"select", &KvOptions::select_entries, 0, 16777216},
      {"window", &KvOptions::window_entries, 0, 16777216},
      {"sinks", &KvOptions::sink_entries, 0, 16777216},
      {"reuse", &KvOptions::reuse_groups, 0, 16777216},
      {"rank", &KvOptions::rank, 1, 8192},
      {"static-steps", &KvOptions::static_steps, 0, 16777216},
  };
  for (const Count& count : counts) {
    for (const uint32_t good : {count.least, 7U, count.most}) {
      EXPECT_EQ(With(count.name, std::to_string(good)).kv.*count.field, good) << count.name;
    }
    std::vector<std::string> bad = {"",    "-1", "x",           "4x",
                                    "4.0", " 4", "99999999999", std::to_string(count.most + 1)};
    if (count.least == 1) bad.emplace_back("0");
    for (const std::string& value : bad) {
      const std::string expected = "KV option " + std::string(count.name) + ": \"" + value +
                                   "\" is not a number from " + std::to_string(count.least) + " to " +
                                   std::to_string(count.most);
      EXPECT_EQ(ErrorOf(count.name, value), expected);
    }
  }
}

TEST(KvOptions, ChoicesAreNamed) {
  EXPECT_EQ(With("index", "f16").kv.index_type, KvType::kF16);
  EXPECT_EQ(With("index", "int8").kv.index_type, KvType::kInt8);
  EXPECT_EQ(With("index", "int4").kv.index_type, KvType::kInt4);
  EXPECT_EQ(With("heads", "sum").kv.heads, HeadReduction::kSum);
  EXPECT_EQ(With("heads", "softmax").kv.heads, HeadReduction::kSoftmax);
  EXPECT_EQ(With("heads", "gqa").kv.heads, HeadReduction::kGqa);
  EXPECT_EQ(With("heads", "per-kv-head").kv.heads, HeadReduction::kPerKvHead);
  for (const char* policy : {"fifo", "lru", "non-hit", "lfu", "cluster"})
    EXPECT_EQ(With("policy", policy).kv.policy, policy);
  EXPECT_EQ(With("shares", "even").kv.kept_shares, KeptShares::kEven);
  EXPECT_EQ(With("shares", "heads").kv.kept_shares, KeptShares::kHeads);
  EXPECT_EQ(With("shares", "layers").kv.kept_shares, KeptShares::kLayers);
  EXPECT_EQ(With("precisions", "bytes").kv.kept_precisions, KeptPrecisions::kBytes);
  EXPECT_EQ(With("precisions", "entries").kv.kept_precisions, KeptPrecisions::kEntries);
  EXPECT_EQ(With("precisions", "original").kv.kept_precisions, KeptPrecisions::kOriginal);
  EXPECT_EQ(With("precisions", "quantised").kv.kept_precisions, KeptPrecisions::kQuantised);
  EXPECT_EQ(With("moments", "keys").kv.attention_moments, AttentionMoments::kKeys);
  EXPECT_EQ(With("moments", "rows").kv.attention_moments, AttentionMoments::kRows);
  EXPECT_EQ(With("adapter-kind", "plain").kv.adapter_kind, AdapterKind::kPlain);
  EXPECT_EQ(With("adapter-kind", "centred").kv.adapter_kind, AdapterKind::kCentred);
  EXPECT_EQ(With("adapter-kind", "query").kv.adapter_kind, AdapterKind::kQuery);
  EXPECT_EQ(With("adapter-kind", "query-centred").kv.adapter_kind, AdapterKind::kQueryCentred);
}

// What completion offers is taken, and the answer to a wrong choice names the same.
TEST(KvOptions, ChoicesAreThoseThatARefusalNames) {
  size_t n_with_choices = 0;
  for (const char* name :
       {"method", "budget",     "type",    "group",  "select",          "mass",   "window",  "sinks",
        "reuse",  "rank",       "index",   "heads",  "representatives", "policy", "adapter", "adapter-kind",
        "shares", "precisions", "moments", "static", "static-steps",    "dir",    "io",      "direct",
        "tmpfs"}) {
    KvSettings settings;
    const Status refused = SetKvOption(name, "?", &settings);
    const size_t at = refused.message().find("is not one of ");
    std::string joined;
    for (const std::string& choice : KvOptionChoices(name)) {
      EXPECT_TRUE(SetKvOption(name, choice, &settings).ok()) << name << " " << choice;
      joined += (joined.empty() ? "" : ", ") + choice;
    }
    EXPECT_EQ(joined, at == std::string::npos ? "" : refused.message().substr(at + 14)) << name;
    n_with_choices += joined.empty() ? 0 : 1;
  }
  EXPECT_EQ(n_with_choices, 13U);
  EXPECT_TRUE(KvOptionChoices("no such option").empty());
}

TEST(KvOptions, WhereItLies) {
  EXPECT_EQ(With("dir", "/mnt/flash").storage.folder, "/mnt/flash");
  EXPECT_EQ(With("adapter", "a.gguf").storage.adapter_path, "a.gguf");
  EXPECT_TRUE(With("adapter", "a.gguf").kv.adapter_from_file);
  EXPECT_EQ(With("direct", "auto").storage.direct, DirectIo::kAuto);
  EXPECT_EQ(With("direct", "on").storage.direct, DirectIo::kOn);
  EXPECT_EQ(With("direct", "off").storage.direct, DirectIo::kOff);
  EXPECT_TRUE(With("tmpfs", "on").storage.allow_tmpfs);
  EXPECT_FALSE(With("tmpfs", "off").storage.allow_tmpfs);
  const std::vector<std::pair<const char*, IoBackend>> backends = {
      {"io_uring", IoBackend::kIoUring}, {"aio", IoBackend::kAio}, {"threads", IoBackend::kThreads}};
  for (const auto& [name, backend] : backends) {
    KvSettings settings = With("io", name);
    EXPECT_FALSE(settings.storage.auto_backend);
    EXPECT_EQ(settings.storage.backend, backend);
    ASSERT_TRUE(SetKvOption("io", "auto", &settings).ok());
    EXPECT_TRUE(settings.storage.auto_backend);
  }
}

TEST(KvOptions, AWrongChoiceIsAnsweredWithTheKnownOnes) {
  const std::vector<std::pair<const char*, const char*>> known = {
      {"method",
       "full, flexgen, kvswap, dynakv, prkv, arkv-flash, streaming, random, oracle, quest, meanstd, loki, "
       "infinigen, "
       "infinigen*, arkv, h2o, snapkv, defensivekv, lazyeviction"},
      {"index", "f16, int8, int4"},
      {"heads", "sum, softmax, gqa, per-kv-head"},
      {"update", "adaptive, static, local"},
      {"layout", "dual-head, cluster, sequence"},
      {"representatives", "memory, flash"},
      {"shares", "even, heads, layers"},
      {"precisions", "bytes, entries, original, quantised"},
      {"moments", "keys, rows"},
      {"policy", "fifo, lru, non-hit, lfu, cluster"},
      {"adapter-kind", "plain, centred, query, query-centred, heads, skewed"},
      {"io", "auto, io_uring, aio, threads"},
      {"direct", "auto, on, off"},
      {"tmpfs", "on, off"},
  };
  for (const auto& [name, values] : known) {
    for (const char* bad : {"", "nonsense", "On"}) {
      EXPECT_EQ(ErrorOf(name, bad),
                "KV option " + std::string(name) + ": \"" + bad + "\" is not one of " + values);
    }
  }
  EXPECT_EQ(ErrorOf("dir", ""), "KV option dir: \"\" is not a path");
  EXPECT_EQ(ErrorOf("adapter", ""), "KV option adapter: \"\" is not a path");
}

TEST(KvOptions, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  const std::string error = ErrorOf("bugdet", "1");
  EXPECT_NE(error.find("\"bugdet\""), std::string::npos);
  for (const char* name :
       {"method",       "budget", "type",    "group",        "select", "mass",       "window",  "sinks",
        "reuse",        "rank",   "index",   "heads",        "shares", "precisions", "moments", "static",
        "static-steps", "policy", "adapter", "adapter-kind", "dir",    "io",         "direct",  "tmpfs"}) {
    EXPECT_NE(error.find(name), std::string::npos) << name;
  }
}

TEST(KvOptions, AMassIsAShare) {
  EXPECT_EQ(With("mass", "0.95").kv.mass_share, 0.95);
  EXPECT_EQ(With("mass", "1").kv.mass_share, 1.0);
  for (const char* bad : {"0", "-0.5", "1.01", "nan", "95%", ""}) {
    EXPECT_EQ(ErrorOf("mass", bad), "KV option mass: \"" + std::string(bad) +
                                        "\" is not a share above 0 and at most 1, such as 0.95");
  }
}

TEST(KvOptions, AStaticSetIsAShareOrThePromptSaysIt) {
  EXPECT_EQ(KvSettings().kv.static_share, std::nullopt);
  for (const auto& [text, share] : {std::pair{"0", 0.0}, {"0.25", 0.25}, {"1", 1.0}, {"1.0", 1.0}}) {
    EXPECT_EQ(With("static", text).kv.static_share, (StaticShare{.share = share, .by_prompt = false}))
        << text;
  }
  const std::optional<StaticShare> by_prompt = With("static", "prompt").kv.static_share;
  ASSERT_TRUE(by_prompt.has_value());
  EXPECT_TRUE(by_prompt->by_prompt);
  for (const char* bad :
       {"", "-0.1", "1.01", "nan", "inf", "25%", "1/4", "Prompt", "prompt ", " 0.25", "0.25x", "0x1"}) {
    EXPECT_EQ(ErrorOf("static", bad), "KV option static: \"" + std::string(bad) +
                                          "\" is neither a share from 0 to 1, such as 0.25, nor \"prompt\"");
  }
  KvSettings settings = With("static", "prompt");
  ASSERT_TRUE(SetKvOption("static", "0.5", &settings).ok());
  EXPECT_FALSE(settings.kv.static_share->by_prompt) << "a later one replaces an earlier";
}

TEST(KvOptions, ARefusedValueChangesNothing) {
  KvSettings settings = With("type", "fp8");
  EXPECT_FALSE(SetKvOption("type", "int4,f7", &settings).ok());
  EXPECT_EQ(settings.kv.k_type, KvType::kFp8);
  EXPECT_EQ(settings.kv.v_type, KvType::kFp8);
}

TEST(KvOptions, ALineIsReadAsACommandLineIs) {
  KvSettings settings = With("rank", "16");
  const Status status = ParseKvOptions(
      "  --kv-method kvswap --kv-budget=1/13\t--kv-tmpfs --kv-type fp8,int8\n--kv-group 8", &settings);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(settings.kv.method, "kvswap");
  EXPECT_EQ(settings.kv.budget_fraction, 1.0 / 13.0);
  EXPECT_TRUE(settings.storage.allow_tmpfs);
  EXPECT_EQ(settings.kv.v_type, KvType::kInt8);
  EXPECT_EQ(settings.kv.group_tokens, 8U);
  EXPECT_EQ(settings.kv.rank, 16U) << "what the line does not name stays";
  ASSERT_TRUE(ParseKvOptions("--kv-tmpfs off --kv-dir=/a=b", &settings).ok());
  EXPECT_FALSE(settings.storage.allow_tmpfs);
  EXPECT_EQ(settings.storage.folder, "/a=b");
  ASSERT_TRUE(ParseKvOptions("", &settings).ok());
  ASSERT_TRUE(ParseKvOptions(" \n", &settings).ok());
}

TEST(KvOptions, AValueInQuotesMayHoldBlanks) {
  KvSettings settings;
  const Status status =
      ParseKvOptions(R"(--kv-dir "/a b\"c\\d\e" --kv-group 8 --kv-adapter=" x")", &settings);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(settings.storage.folder, R"(/a b"c\d\e)");
  EXPECT_EQ(settings.kv.group_tokens, 8U);
  EXPECT_EQ(settings.storage.adapter_path, " x");
}

TEST(KvOptions, ABadLineNamesTheWord) {
  const std::vector<std::pair<const char*, const char*>> bad = {
      {"method kvswap", "\"method\" is not a KV option"},
      {"--method kvswap", "\"--method\" is not a KV option"},
      {"--kv-method kvswap stray", "\"stray\" is not a KV option"},
      {"--kv-method", "--kv-method lacks its value"},
      {"--kv-method --kv-group 4", "--kv-method lacks its value"},
      {"--kv-bugdet 4", "there is no KV option \"bugdet\""},
      {"--kv-budget 1/13 --kv-group 0", "KV option group: \"0\""},
      {"--kv-group=", "KV option group: \"\""},
      {"--kv-dir \"/a b", "a quote is not closed"},
      {"--kv-tmpfs maybe", "KV option tmpfs: \"maybe\""},
  };
  for (const auto& [line, expected] : bad) {
    KvSettings settings;
    const Status status = ParseKvOptions(line, &settings);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << line;
    EXPECT_NE(status.message().find(expected), std::string::npos) << status.message();
  }
}

// Sets variables for as long as it lives; null unsets.
class Environment {
 public:
  Environment(const char* cache, const char* home) {
    Set("XDG_CACHE_HOME", cache);
    Set("HOME", home);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name, value->c_str(), 1) : ::unsetenv(name);
    }
  }

 private:
  void Set(const char* name, const char* value) {
    const char* old = std::getenv(name);
    before_.emplace_back(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }

  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

TEST(KvOptions, TheFolderIsACacheOfTheUser) {
  const TemporaryFolder folder;
  const std::string cache = folder.Path("cache");
  const std::string home = folder.Path("home");
  const std::string own = fmt::format("{}/kvrun-{}", folder.Path("."), ::geteuid());
  const auto found = [&] {
    const auto at = FindKvFolder(FolderUse::kIsTried, InMemory::kIsAllowed, folder.Path("."));
    return at.ok() ? *at : at.status().message();
  };
  {
    const Environment environment(cache.c_str(), home.c_str());
    EXPECT_EQ(found(), cache + "/kvrun/kv");
  }
  for (const char* unusable : {"", "relative/is/ignored"}) {
    const Environment environment(unusable, home.c_str());
    EXPECT_EQ(found(), home + "/.cache/kvrun/kv");
  }
  const Environment environment(nullptr, nullptr);
  EXPECT_EQ(found(), own + "/kv");
}

// Debian's system users have HOME=/nonexistent; here it is a file, so that root cannot make it either.
TEST(KvOptions, AHomeThatCannotBeMadeIsPassedOver) {
  const TemporaryFolder folder;
  const std::string plain = folder.Write("plain", "");
  const std::string own = fmt::format("{}/kvrun-{}", folder.Path("."), ::geteuid());
  const Environment environment(plain.c_str(), (plain + "/home").c_str());
  const Result<std::string> tried = FindKvFolder(FolderUse::kIsTried, InMemory::kIsAllowed, folder.Path("."));
  EXPECT_EQ(tried.ok() ? *tried : tried.status().message(), own + "/kv");
  EXPECT_FALSE(std::filesystem::exists(own)) << "nothing is made";
  const Result<std::string> made = FindKvFolder(FolderUse::kIsMade, InMemory::kIsAllowed, folder.Path("."));
  ASSERT_EQ(made.ok() ? *made : made.status().message(), own + "/kv");
  struct stat info {};
  ASSERT_EQ(::lstat(own.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700U);
}

TEST(KvOptions, AFolderInMemoryIsPassedOverWithAWord) {
  const std::string cache = fmt::format("/dev/shm/kvrun-test-{}", ::getpid());
  struct statfs facts {};
  if (::statfs("/dev/shm", &facts) != 0 || facts.f_type != TMPFS_MAGIC) GTEST_SKIP() << "no tmpfs";
  const TemporaryFolder folder;
  const std::string home = folder.Path("home");
  const Environment environment(cache.c_str(), home.c_str());
  EXPECT_EQ(
      NoteOfKvFolder(folder.Path(".")),
      "the KV cache lies in " + home + "/.cache/kvrun/kv (" + cache +
          "/kvrun/kv: it lies in memory (tmpfs), where a KV cache saves no memory); --kv-dir names another "
          "folder");
  const Environment usual(folder.Path("cache").c_str(), home.c_str());
  EXPECT_EQ(NoteOfKvFolder(folder.Path(".")), "");
}

// What another user may have put there is refused, and all that was tried is named.
TEST(KvOptions, AFolderOfSomebodyElseIsRefused) {
  const TemporaryFolder folder;
  const std::string plain = folder.Write("plain", "");
  const std::string own = fmt::format("{}/kvrun-{}", folder.Path("."), ::geteuid());
  const Environment environment(plain.c_str(), nullptr);
  const auto message = [&] {
    return FindKvFolder(FolderUse::kIsMade, InMemory::kIsAllowed, folder.Path(".")).status().message();
  };
  const std::string before = "no folder for the KV cache can be used (cannot make the folder " + plain +
                             "/kvrun/kv: Not a directory; " + own + ": ";
  const std::string after = "): name a folder on flash with --kv-dir";
  std::filesystem::create_directory(folder.Path("there"));
  std::filesystem::create_directory_symlink(folder.Path("there"), own);
  EXPECT_EQ(message(), before + "it is a symbolic link, which anybody may have made: remove it" + after);
  std::filesystem::remove(own);
  std::filesystem::create_directory(own);
  ASSERT_EQ(::chmod(own.c_str(), 0777), 0);
  EXPECT_EQ(message(), before + "others can write into it (mode 777): remove it, or chmod 700 it" + after);
  ASSERT_EQ(::chmod(own.c_str(), 0700), 0);
  EXPECT_EQ(message(), "");
  if (::chown(own.c_str(), 12345, static_cast<gid_t>(-1)) == 0) {
    EXPECT_EQ(message(), before + "it belongs to another user (12345)" + after);
  }
  std::filesystem::remove_all(own);
  EXPECT_TRUE(std::filesystem::is_empty(folder.Path("there")));
}

}  // namespace
}  // namespace kvrun
