// What is written is counted, day by day, whoever writes and however many do at once.
#include "runtime/store/write_meter.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "platform/io/block_file.h"
#include "platform/io/own_file.h"
#include "runtime/store/written_days.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

TEST(WrittenDays, TellsTheLastDaysApartAndForgetsNoByte) {
  WrittenDays written;
  for (uint32_t day = 100; day < 140; ++day) written.Add(day, day);
  EXPECT_EQ(written.days().size(), WrittenDays::kMostDays);
  EXPECT_EQ(written.total_bytes(), (100U + 139U) * 40 / 2);
  EXPECT_EQ(written.BytesOf(109), 0U);
  EXPECT_EQ(written.BytesOf(110), 110U);
  written.Add(120, 5);  // the clock was set back
  EXPECT_EQ(written.BytesOf(120), 120U);
  EXPECT_EQ(written.BytesOf(139), 144U);
  written.Add(200, 0);
  EXPECT_EQ(written.days().back().day, 139U);
  written.Add(140, UINT64_MAX);
  EXPECT_EQ(written.total_bytes(), UINT64_MAX);
}

TEST(WrittenDays, ItsTextIsReadAndNothingElseIs) {
  WrittenDays written;
  for (const uint32_t day : {20785U, 20787U}) written.Add(day, uint64_t{1} << 40);
  const std::string text = written.Text();
  EXPECT_EQ(text, "kvrun written 1\n2199023255552\n20785 1099511627776\n20787 1099511627776\nend\n");
  const Result<WrittenDays> read = WrittenDays::Read(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->Text(), text);
  for (size_t n = 0; n < text.size(); ++n)
    EXPECT_EQ(WrittenDays::Read(text.substr(0, n)).status().code(), StatusCode::kCorrupt) << n;
  EXPECT_FALSE(WrittenDays::Read(text + "x").ok());
  EXPECT_FALSE(WrittenDays::Read("kvrun written 1\n2\n5 1\n5 1\nend\n").ok());
  EXPECT_FALSE(WrittenDays::Read("kvrun written 1\n2\n5 -1\nend\n").ok());
  EXPECT_FALSE(WrittenDays::Read("kvrun written 1\n99999999999999999999999\nend\n").ok());
}

TEST(WrittenDays, DatesAreOfUtc) {
  EXPECT_EQ(DateText(0), "1970-01-01");
  EXPECT_EQ(DateText(DayOf(951782400)), "2000-02-29");
  EXPECT_EQ(DayOf(86399), 0U);
  EXPECT_EQ(DayOf(-5), 0U);
}

class WriteMeters : public ::testing::Test {
 protected:
  std::unique_ptr<BlockFile> File() const {
    BlockFileOptions options;
    options.folder = folder_.Path("kv");
    options.allow_tmpfs = true;
    return CreateBlockFile(options).value();
  }
  WrittenDays Written() const { return ReadWritten(path_).value(); }

  TemporaryFolder folder_;
  const std::string path_ = folder_.Path("state") + "/sessions/written";
};

TEST_F(WriteMeters, CountWhatFilesAreGivenUntilTheyGo) {
  const auto meter = std::make_shared<WriteMeter>(path_);
  AlignedMemory memory(64 * 1024);
  {
    const std::unique_ptr<BlockFile> file = Metered(File(), meter);
    EXPECT_EQ(DoOne(*file, IoKind::kWrite, 0, memory.span()), 0);
    EXPECT_EQ(DoOne(*file, IoKind::kRead, 0, memory.span()), 0);
    EXPECT_EQ(DoOne(*file, IoKind::kWrite, 64 * 1024, memory.span().first(4096)), 0);
  }
  EXPECT_EQ(meter->bytes(), 68U * 1024);
  meter->FlushIfMuch();
  EXPECT_EQ(Written().total_bytes(), 0U);  // it is not much
  ASSERT_TRUE(meter->Flush().ok());
  ASSERT_TRUE(meter->Flush().ok());  // each byte counts once
  EXPECT_EQ(Written().total_bytes(), 68U * 1024);
  EXPECT_EQ(Written().BytesOf(Today()) + Written().BytesOf(Today() - 1), 68U * 1024);
  meter->Add(WriteMeter::kMuchBytes);
  meter->FlushIfMuch();
  EXPECT_EQ(Written().total_bytes(), 68U * 1024 + WriteMeter::kMuchBytes);
}

TEST_F(WriteMeters, AreForTheirUserAlone) {
  { WriteMeter(path_).Add(7); }
  EXPECT_EQ(Written().total_bytes(), 7U);
  struct stat facts {};
  ASSERT_EQ(stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  ASSERT_EQ(stat(FolderOf(path_).c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700U);
}

// Each opens the folder for itself, as processes do.
TEST_F(WriteMeters, LoseNothingWhereManyAddAtOnce) {
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([this] {
      for (int k = 0; k < 25; ++k) {
        WriteMeter meter(path_);
        meter.Add(3);
        EXPECT_TRUE(meter.Flush().ok());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(Written().total_bytes(), 8U * 25 * 3);
}

TEST_F(WriteMeters, KeepCountingWhereTheFileCannotBeWritten) {
  WriteMeter meter(folder_.Write("file", "x") + "/written");
  meter.Add(9);
  EXPECT_FALSE(meter.Flush().ok());
  EXPECT_EQ(meter.bytes(), 9U);
}

TEST_F(WriteMeters, ReplaceWhatIsNoneOfTheirs) {
  const std::string path = folder_.Write("written", "something else");
  const Status status = ReadWritten(path).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find(path), std::string::npos);
  ASSERT_TRUE(AddWritten(path, 5, 6).ok());
  EXPECT_EQ(ReadWritten(path)->BytesOf(5), 6U);
}

}  // namespace
}  // namespace kvrun::testing
