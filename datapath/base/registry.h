#pragma once
// Names to plug-ins. Filled by explicit registrars (see the builtin_*.def files), never by static
// initialisers: a linker drops those from static archives.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/check.h"
#include "datapath/base/status.h"

namespace weir {

/// Owns one instance of each plug-in of type T. Filled once, read-only and thread-safe afterwards.
/// T provides `const std::string& name() const` through its traits: `Traits().name`.
template <typename T>
class Registry {
 public:
  /// `kind` is what an error calls the thing: "codec", "collective".
  explicit Registry(std::string kind) : kind_(std::move(kind)) {}

  /// A second plug-in of the same name or wire id is a bug.
  void Add(uint8_t wire_id, std::unique_ptr<T> plugin) {
    std::string name = plugin->Traits().name;
    for (const auto& [other, entry] : entries_) WEIR_CHECK(entry.wire_id != wire_id);
    WEIR_CHECK(entries_.try_emplace(std::move(name), Entry{wire_id, std::move(plugin)}).second);
  }

  /// The plug-in, alive as long as the registry. kNotFound lists the valid names.
  StatusOr<const T*> Find(std::string_view name) const {
    const auto it = entries_.find(name);
    if (it == entries_.end()) {
      std::string valid;
      for (const auto& [known, entry] : entries_) valid += (valid.empty() ? "" : ", ") + known;
      return NotFound(StrCat("unknown ", kind_, " '", name, "'; valid: ", valid));
    }
    return it->second.plugin.get();
  }

  /// The stable wire id of a registered name; 0 when unknown (0 is never assigned).
  uint8_t WireId(std::string_view name) const {
    const auto it = entries_.find(name);
    return it == entries_.end() ? 0 : it->second.wire_id;
  }

  /// Every plug-in, ordered by name.
  std::vector<const T*> All() const {
    std::vector<const T*> all;
    for (const auto& [name, entry] : entries_) all.push_back(entry.plugin.get());
    return all;
  }

 private:
  struct Entry {
    uint8_t wire_id;
    std::unique_ptr<T> plugin;
  };
  std::string kind_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace weir
