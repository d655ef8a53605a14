// SPDX-License-Identifier: Apache-2.0
#pragma once
// A registry of plug-ins by name. Explicit registrars fill it (see the builtin_*.def files). Static
// initialisers do not, because a linker drops them from static archives.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/check.h"
#include "datapath/base/status.h"

namespace weir {

/// Returns the name of the plug-in in `name`. A plug-in may have variants, each with its own
/// traits. The name of a variant is that of the plug-in, a colon and the parameter that
/// distinguishes it, as in "sidco:fit=gp". The plug-in's own name means the default. Thread-safe.
inline std::string_view PluginOf(std::string_view name) { return name.substr(0, name.find(':')); }

/// The names that an error lists for the unknown name `wanted`, separated by commas: the variants
/// of its plug-in if that is known, or else all names.
inline std::string ValidNames(std::string_view wanted, const std::set<std::string>& known) {
  std::string variants, all;
  for (const std::string& name : known) {
    all += (all.empty() ? "" : ", ") + name;
    if (PluginOf(name) == PluginOf(wanted)) variants += (variants.empty() ? "" : ", ") + name;
  }
  return variants.empty() ? all : variants;
}

/// Owns one instance of each plug-in of type T. It is filled once, and read-only and thread-safe
/// afterwards. T has `Traits().name`.
template <typename T>
class Registry {
 public:
  /// `kind` is the term in errors: "codec", "collective".
  explicit Registry(std::string kind) : kind_(std::move(kind)) {}

  /// Variants of one plug-in share its wire id. A second plug-in of the same name or wire id is a
  /// bug.
  void Add(uint8_t wire_id, std::unique_ptr<T> plugin) {
    std::string name = plugin->Traits().name;
    for (const auto& [other, entry] : entries_) {
      WEIR_CHECK((entry.wire_id == wire_id) == (PluginOf(other) == PluginOf(name)));
    }
    WEIR_CHECK(entries_.try_emplace(std::move(name), Entry{wire_id, std::move(plugin)}).second);
  }

  /// Returns the plug-in, which lives as long as the registry. kNotFound lists the valid names
  /// (ValidNames).
  StatusOr<const T*> Find(std::string_view name) const {
    const auto it = entries_.find(name);
    if (it == entries_.end()) {
      std::set<std::string> known;
      for (const auto& [each, entry] : entries_) known.insert(each);
      return NotFound(StrCat("unknown ", kind_, " '", name, "'; valid: ", ValidNames(name, known)));
    }
    return it->second.plugin.get();
  }

  /// The stable wire id of a registered name, or 0 for an unknown name (0 is never assigned).
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
