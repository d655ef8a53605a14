// SPDX-License-Identifier: Apache-2.0
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

TEST(RegistryTest, VariantsShareTheWireIdOfTheirPlugin) {
  Registry<Plugin> registry = Filled();
  registry.Add(7, std::make_unique<Plugin>("wrench:size=13"));
  EXPECT_EQ((*registry.Find("wrench:size=13"))->Traits().name, "wrench:size=13");
  EXPECT_EQ(registry.WireId("wrench:size=13"), 7);
  EXPECT_EQ(PluginOf("wrench:size=13"), "wrench");
}

TEST(RegistryTest, UnknownVariantListsThoseOfItsPlugin) {
  Registry<Plugin> registry = Filled();
  registry.Add(7, std::make_unique<Plugin>("wrench:size=13"));
  for (const char* unknown : {"wrench:size=14", "wrench:colour=red", "wrench:"}) {
    EXPECT_EQ(Message(registry.Find(unknown).status()),
              StrCat("unknown gadget '", unknown, "'; valid: wrench, wrench:size=13"));
  }
  EXPECT_EQ(Message(registry.Find("saw:size=13").status()),
            "unknown gadget 'saw:size=13'; valid: anvil, wrench, wrench:size=13");
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
  EXPECT_DEATH(registry.Add(3, std::make_unique<Plugin>("wrench:size=13")), "check failed");
}

}  // namespace
}  // namespace weir
