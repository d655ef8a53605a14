#include "datapath/base/registry.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

struct Traits {
  std::string name;
};
class Plugin {
 public:
  explicit Plugin(std::string name) : traits_{std::move(name)} {}
  const weir::Traits& Traits() const { return traits_; }

 private:
  weir::Traits traits_;
};

Registry<Plugin> Filled() {
  Registry<Plugin> registry("gadget");
  registry.Add(7, std::make_unique<Plugin>("wrench"));
  registry.Add(3, std::make_unique<Plugin>("anvil"));
  return registry;
}

TEST(RegistryTest, FindsByNameAndKeepsWireIds) {
  const Registry<Plugin> registry = Filled();
  ASSERT_TRUE(registry.Find("wrench").ok());
  EXPECT_EQ((*registry.Find("wrench"))->Traits().name, "wrench");
  EXPECT_EQ(registry.WireId("wrench"), 7);
  EXPECT_EQ(registry.WireId("anvil"), 3);
  EXPECT_EQ(registry.WireId("saw"), 0);
}

TEST(RegistryTest, UnknownNameListsTheValidOnes) {
  const Status status = Filled().Find("saw").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "unknown gadget 'saw'; valid: anvil, wrench");
}

TEST(RegistryTest, AllIsOrderedByName) {
  const Registry<Plugin> registry = Filled();
  const auto all = registry.All();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]->Traits().name, "anvil");
  EXPECT_EQ(all[1]->Traits().name, "wrench");
}

TEST(RegistryDeathTest, DuplicatesAreBugs) {
  Registry<Plugin> registry = Filled();
  EXPECT_DEATH(registry.Add(9, std::make_unique<Plugin>("anvil")), "check failed");
  EXPECT_DEATH(registry.Add(3, std::make_unique<Plugin>("saw")), "check failed");
}

}  // namespace
}  // namespace weir
