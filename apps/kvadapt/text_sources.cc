#include "apps/kvadapt/text_sources.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/interrupt.h"

namespace kvrun::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTextBytes = size_t{64} << 20;     // of one file
constexpr size_t kMaxDefaultBytes = size_t{64} << 10;  // of one file of the default texts
constexpr size_t kSmallestRead = size_t{64} << 10;
constexpr size_t kLikelyTokenBytes = 6;  // more than most tokenizers' mean
constexpr double kTextShare = 0.95;      // of bytes that are in whole characters: a few may be Latin-1

// In their order. What a minimal system has is the first, and copyright files below the second.
constexpr const char* kDefaultFolders[] = {"/usr/share/common-licenses", "/usr/share/doc", "/usr/share/perl5",
                                           "/usr/share/perl", "/usr/lib/python3"};

size_t CharacterBytes(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80; }

// Bytes of the character at `at`; 0: it is none. Sets `unfinished` where the text ends in it.
size_t CharacterAt(std::string_view text, size_t at, bool* unfinished) {
  const size_t size = CharacterBytes(static_cast<unsigned char>(text[at]));
  for (size_t i = 1; i < size; ++i) {
    *unfinished = at + i == text.size();
    if (*unfinished || !IsContinuation(text[at + i])) return 0;
  }
  return size;
}

// What a reader that stopped somewhere ends with.
std::string_view WithoutUnfinishedCharacter(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const char byte = text[text.size() - back];
    if (IsContinuation(byte)) continue;
    if (CharacterBytes(static_cast<unsigned char>(byte)) > back) text.remove_suffix(back);
    break;
  }
  return text;
}

// A file of which ever more is read.
class PartialFile {
 public:
  explicit PartialFile(const std::string& path)
      : name_(path == "-" ? "standard input" : path),
        fd_(path == "-" ? ::dup(STDIN_FILENO) : OpenToRead(path)) {
    if (fd_ < 0) Fail(errno);
  }
  ~PartialFile() { ::close(fd_); }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const std::string& name() const { return name_; }
  const std::string& bytes() const { return bytes_; }
  bool at_end() const { return at_end_; }

  // Until there are so many bytes, or no more.
  void ReadTo(size_t n_bytes) {
    char buffer[64 * 1024];
    while (!at_end_ && bytes_.size() < n_bytes) {
      if (!WaitReadable(fd_)) throw Interruption();
      const ssize_t size = ::read(fd_, buffer, std::min(sizeof buffer, n_bytes - bytes_.size()));
      if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (size < 0) Fail(errno);
      at_end_ = size == 0;
      bytes_.append(buffer, static_cast<size_t>(size));
    }
  }

 private:
  [[noreturn]] void Fail(int error_number) const {
    throw Failure(error_number == ENOENT ? KVRUN_NOT_FOUND : KVRUN_IO_ERROR,
                  fmt::format("cannot read {}: {}", name_, std::strerror(error_number)));
  }

  std::string name_;
  int fd_;
  std::string bytes_;
  bool at_end_ = false;
};

class Collector {
 public:
  Collector(const Model& model, uint64_t max_tokens) : model_(model), max_tokens_(max_tokens) {}

  CollectedTexts Take() { return std::move(collected_); }
  bool HasEnough() const { return collected_.n_tokens >= max_tokens_; }
  void NoteCut() { collected_.is_cut = true; }

  void AddFile(const std::string& path) {
    PartialFile file(path);
    file.ReadTo(FirstBytes(kMaxTextBytes));
    if (file.bytes().empty()) {
      throw Failure(KVRUN_INVALID_ARGUMENT, fmt::format("{} is empty: give a text", file.name()));
    }
    if (!LooksLikeText(file.bytes())) {
      throw Failure(KVRUN_INVALID_ARGUMENT,
                    fmt::format("{} is not text: it has zero bytes, or is mostly not UTF-8; convert text of "
                                "another encoding to UTF-8 (iconv -f UTF-16 -t UTF-8), or name another file",
                                file.name()));
    }
    collected_.texts.emplace_back();
    Append(file, kMaxTextBytes);
  }

  // Answers whether there was a folder.
  bool AddFolder(const std::string& path, size_t max_file_bytes) {
    collected_.has_folders = true;
    collected_.texts.emplace_back();
    return Descend(path, max_file_bytes, /*is_named=*/true);
  }

 private:
  size_t FirstBytes(size_t max_bytes) const {
    const uint64_t missing = std::min<uint64_t>(max_tokens_ - collected_.n_tokens, kMaxTextBytes);
    return std::min<size_t>(max_bytes, std::max<size_t>(kSmallestRead, missing * kLikelyTokenBytes));
  }

  // To the last text: as much of the file as is missing. Long words are few: more is read where they are not.
  void Append(PartialFile& file, size_t max_bytes) {
    const uint64_t missing = max_tokens_ - collected_.n_tokens;
    std::vector<int32_t> ids;
    for (size_t n_bytes = FirstBytes(max_bytes);; n_bytes = std::min(2 * n_bytes, max_bytes)) {
      file.ReadTo(n_bytes);
      const std::string_view text =
          file.at_end() ? std::string_view(file.bytes()) : WithoutUnfinishedCharacter(file.bytes());
      ids = Tokenize(model_, text, KVRUN_ENCODE_BOS_IF_ASKED);
      if (ids.size() >= missing || file.at_end() || n_bytes == max_bytes) break;
    }
    collected_.is_cut =
        collected_.is_cut || ids.size() > missing || (ids.size() == missing && !file.at_end());
    if (ids.size() < missing && max_bytes == kMaxTextBytes && HasMore(file))
      collected_.shortened.push_back(file.name());
    ids.resize(std::min<uint64_t>(ids.size(), missing));
    collected_.n_files += ids.empty() ? 0 : 1;
    collected_.n_tokens += ids.size();
    std::vector<int32_t>& last = collected_.texts.back();
    last.insert(last.end(), ids.begin(), ids.end());
  }

  static bool HasMore(PartialFile& file) {
    file.ReadTo(file.bytes().size() + 1);
    return !file.at_end();
  }

  void Skip(const std::string& why) { ++collected_.skipped[why]; }

  bool Descend(const std::string& folder, size_t max_file_bytes, bool is_named) {
    std::error_code error;
    std::vector<fs::path> entries;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
      entries.push_back(at->path());
    if (error) {
      if (is_named) return false;
      Skip("unreadable");
      return true;
    }
    std::sort(entries.begin(), entries.end());
    for (const fs::path& entry : entries) {
      if (Interrupted()) throw Interruption();
      if (HasEnough()) {
        NoteCut();
        break;
      }
      Visit(entry, max_file_bytes);
    }
    return true;
  }

  void Visit(const fs::path& entry, size_t max_file_bytes) {
    std::error_code error;
    const bool is_link = fs::is_symlink(fs::symlink_status(entry, error));
    const fs::file_status facts = fs::status(entry, error);
    if (entry.filename().native().starts_with('.')) return Skip("hidden");
    if (fs::is_directory(facts)) {
      if (is_link) return Skip("links to folders");
      (void)Descend(entry.native(), max_file_bytes, /*is_named=*/false);
      return;
    }
    if (!fs::is_regular_file(facts)) return Skip("no files");
    try {
      AddFileOfFolder(entry.native(), max_file_bytes);
    } catch (const Failure& failure) {
      if (failure.exit_code() == kExitInterrupted) throw;
      Skip("unreadable");
    }
  }

  // Its beginning alone says whether it is another's copy: a link, a licence in each package.
  void AddFileOfFolder(const std::string& path, size_t max_bytes) {
    PartialFile file(path);
    file.ReadTo(std::min(kSmallestRead, max_bytes));
    if (file.bytes().empty()) return Skip("empty");
    if (!LooksLikeText(file.bytes())) return Skip("not text");
    const auto mark = std::pair(std::hash<std::string>()(file.bytes()), fs::file_size(path));
    if (!seen_.insert(mark).second) return Skip("copies");
    Append(file, max_bytes);
  }

  const Model& model_;
  uint64_t max_tokens_;
  CollectedTexts collected_;
  std::set<std::pair<size_t, uintmax_t>> seen_;
};

// A reason to skip, of one file.
std::string OfOne(const std::string& why) {
  if (why == "copies") return "copy";
  if (why == "links to folders") return "link to a folder";
  return why == "no files" ? "no file" : why;
}

}  // namespace

bool LooksLikeText(std::string_view bytes) {
  if (bytes.find('\0') != std::string_view::npos) return false;
  size_t n_bad = 0;
  for (size_t at = 0; at < bytes.size();) {
    bool unfinished = false;
    const size_t size = CharacterAt(bytes, at, &unfinished);
    if (size == 0 && !unfinished) ++n_bad;
    at += std::max<size_t>(size, 1);
  }
  return static_cast<double>(bytes.size() - n_bad) >= kTextShare * static_cast<double>(bytes.size());
}

CollectedTexts CollectTexts(const Model& model, const std::vector<std::string>& sources,
                            uint64_t max_tokens) {
  CheckTextNames(sources);
  Collector collector(model, max_tokens);
  for (const std::string& source : sources) {
    if (collector.HasEnough()) {
      collector.NoteCut();
      break;
    }
    std::error_code error;
    if (source == "-" || !fs::is_directory(source, error)) {
      collector.AddFile(source);
    } else if (!collector.AddFolder(source, kMaxTextBytes)) {
      throw Failure(KVRUN_IO_ERROR, fmt::format("cannot read the folder {}", source));
    }
  }
  return collector.Take();
}

CollectedTexts CollectDefaultTexts(const Model& model, uint64_t max_tokens) {
  Collector collector(model, max_tokens);
  for (const char* folder : kDefaultFolders) {
    std::error_code error;
    if (!collector.HasEnough() && fs::is_directory(folder, error))
      (void)collector.AddFolder(folder, kMaxDefaultBytes);
  }
  return collector.Take();
}

std::string DescribeTexts(const CollectedTexts& texts) {
  std::string line = fmt::format("{} text{}, {} token{}", texts.n_files, texts.n_files == 1 ? "" : "s",
                                 texts.n_tokens, texts.n_tokens == 1 ? "" : "s");
  std::string separator = "; skipped: ";
  for (const auto& [why, n] : texts.skipped) {
    line += fmt::format("{}{} {}", separator, n, n == 1 ? OfOne(why) : why);
    separator = ", ";
  }
  if (texts.is_cut) line += "; the rest is not read: --tokens N takes more";
  if (!texts.shortened.empty()) {
    const size_t n_more = texts.shortened.size() - 1;
    line += fmt::format("; of {}{} the first {} MiB alone are read: split larger texts, and name the parts",
                        texts.shortened.front(), n_more == 0 ? "" : fmt::format(" and {} more", n_more),
                        kMaxTextBytes >> 20);
  }
  return line;
}

}  // namespace kvrun::cli
