// Described machines: who runs where, and that the rows a node packs are the rows it multiplies.
#include "backends/cpu/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <set>

#include "backends/cpu/stretches.h"

namespace kun {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A folder like /sys/devices/system/node.
class Machine {
 public:
  explicit Machine(const std::vector<std::string>& cpulists)
      : folder_(fs::temp_directory_path() /
                fmt_name(testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    if (!cpulists.empty()) {
      std::ofstream(folder_ / "online") << "0-" << cpulists.size() - 1 << "\n";
    }
    for (std::size_t i = 0; i < cpulists.size(); ++i) {
      const fs::path node = folder_ / ("node" + std::to_string(i));
      fs::create_directories(node);
      std::ofstream(node / "cpulist") << cpulists[i] << "\n";
    }
  }
  ~Machine() { fs::remove_all(folder_); }

  const fs::path& folder() const { return folder_; }

 private:
  static std::string fmt_name(const std::string& test) {
    return "kun-topology-" + std::to_string(::getpid()) + "-" + test;
  }
  fs::path folder_;
};

std::vector<int> range(int count) {
  std::vector<int> cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

TEST(Topology, ReadsListsAsTheKernelWritesThem) {
  EXPECT_THAT(*parse_cpu_list("0-3,8,10-11"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(*parse_cpu_list("5,1-2,2"), ElementsAre(1, 2, 5));
  EXPECT_TRUE(parse_cpu_list("")->empty());
  for (const char* bad : {"a", "1-", "-1", "3-1", "1,", ",1", "1 2", "99999999999", "0-70000"}) {
    EXPECT_FALSE(parse_cpu_list(bad).has_value()) << bad;
  }
}

TEST(Topology, TakesTheAllowedProcessorsOfEachNode) {
  const Machine machine({"0-31", "32-63", ""});  // the last is memory alone
  const std::vector<int> allowed{0, 1, 40, 41, 42};
  const std::vector<CpuNode> nodes = read_topology(allowed, machine.folder());
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_THAT(nodes[0].cpus, ElementsAre(0, 1));
  EXPECT_EQ(nodes[1].id, 1);
  EXPECT_THAT(nodes[1].cpus, ElementsAre(40, 41, 42));
}

TEST(Topology, IsOneNodeWhereTheMachineDoesNotTell) {
  for (const std::vector<std::string>& lists :
       {std::vector<std::string>{}, std::vector<std::string>{"0-1", "rubbish"}}) {
    const Machine machine(lists);
    const std::vector<int> allowed = range(4);
    const std::vector<CpuNode> nodes = read_topology(allowed, machine.folder());
    ASSERT_EQ(nodes.size(), 1U);
    EXPECT_EQ(nodes[0].cpus, allowed);
  }
}

TEST(Topology, FillsTheMachineNodeByNode) {
  const Machine machine({"0,2,4,6", "1,3,5,7"});
  const auto placed = place_threads({}, range(8), machine.folder());
  ASSERT_TRUE(placed.has_value());
  EXPECT_EQ(placed->thread_count, 8);
  EXPECT_EQ(placed->node_count, 2);
  EXPECT_THAT(placed->cpus, ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
}

TEST(Topology, DoesNotPinFewerThreadsThanProcessorsUnlessTheyAreNamed) {
  const Machine machine({"0-3", "4-7"});
  const auto free = place_threads({.thread_count = 4}, range(8), machine.folder());
  EXPECT_TRUE(free->cpus.empty());
  EXPECT_EQ(free->node_count, 1);
  const auto quota = place_threads({.cpu_quota = 3}, range(8), machine.folder());
  EXPECT_EQ(quota->thread_count, 3);
  EXPECT_TRUE(quota->cpus.empty());
  const auto named = place_threads({.thread_count = 4, .cpus = "0-7"}, range(8), machine.folder());
  EXPECT_EQ(named->node_count, 2);
  EXPECT_THAT(named->cpus, ElementsAre(0, 1, 4, 5));
}

TEST(Topology, TreatsUnequalNodesAsOne) {
  const Machine machine({"0-2", "3-7"});
  const auto placed = place_threads({}, range(8), machine.folder());
  EXPECT_EQ(placed->node_count, 1);
  EXPECT_EQ(placed->cpus, range(8));
}

TEST(Topology, ObeysTheOperator) {
  const Machine machine({"0-3", "4-7"});
  const auto one = place_threads({.numa = "1"}, range(8), machine.folder());
  EXPECT_THAT(one->cpus, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(one->node_count, 1);
  const auto off = place_threads({.numa = "off"}, range(8), machine.folder());
  EXPECT_EQ(off->node_count, 1);
  EXPECT_EQ(off->thread_count, 8);
  const auto some = place_threads({.cpus = "2-5"}, range(8), machine.folder());
  EXPECT_EQ(some->node_count, 2);
  EXPECT_THAT(some->cpus, ElementsAre(2, 3, 4, 5));
}

TEST(Topology, NamesWhatIsNotThere) {
  const Machine machine({"0-3", "4-7"});
  const auto message = [&](PlacementOptions options) {
    const auto placed = place_threads(options, range(8), machine.folder());
    return placed.has_value() ? std::string() : std::string(placed.error().message());
  };
  EXPECT_THAT(message({.cpus = "6-9"}), HasSubstr("processor 8"));
  EXPECT_THAT(message({.cpus = "x"}), HasSubstr("'x'"));
  EXPECT_THAT(message({.numa = "2"}), HasSubstr("memory node 2"));
  EXPECT_THAT(message({.numa = "on"}), HasSubstr("'on'"));
}

// --- Stretches -----------------------------------------------------------------------------------

TEST(Stretches, CoverAllTilesAndEveryWorkerVisitsEach) {
  for (const auto& [threads, nodes] :
       {std::pair{1, 1}, {3, 1}, {64, 1}, {64, 2}, {96, 4}, {8, 8}}) {
    const Stretches stretches(threads, nodes);
    EXPECT_EQ(stretches.begin(0, 1000), 0);
    EXPECT_EQ(stretches.begin(stretches.count(), 1000), 1000);
    for (int worker = 0; worker < threads; ++worker) {
      std::set<int> seen;
      for (int i = 0; i < stretches.count(); ++i) seen.insert(stretches.visited(worker, i));
      ASSERT_EQ(static_cast<int>(seen.size()), stretches.count()) << threads << " " << worker;
    }
  }
}

TEST(Stretches, AreLeftForAnotherNodeOnlyWhenTheOwnNodeHasNone) {
  const Stretches stretches(64, 4);
  const int per_node = stretches.count() / 4;
  for (int worker = 0; worker < 64; ++worker) {
    for (int i = 0; i < per_node; ++i) {
      EXPECT_EQ(stretches.visited(worker, i) / per_node, worker / 16);
    }
  }
}

// The node whose threads begin with `tile` of a loop.
int owner(const Stretches& stretches, std::int64_t tile, std::int64_t tiles) {
  int stretch = 0;
  while (stretches.begin(stretch + 1, tiles) <= tile) ++stretch;
  return stretch / (stretches.count() / stretches.node_count());
}

TEST(Stretches, KeepTheRowsOfAMatrixWithTheNodeThatPackedThem) {
  const Stretches stretches(64, 2);
  for (const std::int64_t panels : {48, 64, 280, 560, 4748}) {
    // Packing takes a panel a tile, a product several; only those at the seam may differ.
    for (const std::int64_t panels_per_item : {1, 2, 4, 7}) {
      const std::int64_t items = (panels + panels_per_item - 1) / panels_per_item;
      std::int64_t strangers = 0;
      for (std::int64_t panel = 0; panel < panels; ++panel) {
        const int packed = owner(stretches, panel, panels);
        const int multiplied = owner(stretches, panel / panels_per_item, items);
        if (packed != multiplied) ++strangers;
      }
      EXPECT_LE(strangers, panels_per_item) << panels << " panels";
    }
  }
}

}  // namespace
}  // namespace kun
