// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/contexts.h"

#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

namespace weir::cli {
namespace {

const std::set<std::string>& ContextKeys() {
  static const std::set<std::string> keys = {"controller", "ca", "cert", "key", "token-file"};
  return keys;
}

template <typename Map>
std::string ContextNames(const Map& map) {
  std::string names;
  for (const auto& [name, value] : map) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

StatusOr<Contexts> ParseContexts(const YAML::Node& document, const std::string& path) {
  const auto wrong = [&path](const YAML::Node& at, const std::string& what) {
    return InvalidArgument(StrCat(path, ":", at.Mark().line + 1, ": ", what));
  };
  Contexts contexts;
  if (document.IsNull()) return contexts;
  if (!document.IsMap()) return wrong(document, "expected the keys current and contexts");
  for (const auto& entry : document) {
    const auto key = entry.first.as<std::string>();
    if (key == "current" && entry.second.IsScalar()) {
      contexts.current = entry.second.Scalar();
    } else if (key == "contexts" && entry.second.IsMap()) {
      for (const auto& named : entry.second) {
        if (!named.second.IsMap()) return wrong(named.second, "expected flags of a context");
        Context& context = contexts.by_name[named.first.as<std::string>()];
        for (const auto& flag : named.second) {
          const auto name = flag.first.as<std::string>();
          if (!ContextKeys().contains(name) || !flag.second.IsScalar()) {
            return wrong(flag.first, StrCat("unknown flag '", name,
                                            "'; valid: ca, cert, controller, key, token-file"));
          }
          context[name] = flag.second.Scalar();
        }
      }
    } else {
      return wrong(entry.first, StrCat("unknown key '", key, "'; valid: current, contexts"));
    }
  }
  return contexts;
}

}  // namespace

StatusOr<Contexts> ReadContexts(const std::string& path) {
  std::error_code unseen;  // a home that is another user's has no contexts for this one
  if (path.empty() || !std::filesystem::exists(path, unseen)) return Contexts();
  try {
    return ParseContexts(YAML::LoadFile(path), path);
  } catch (const YAML::Exception& error) {
    return InvalidArgument(StrCat(path, ":", error.mark.line + 1, ": ", error.msg));
  }
}

Status WriteContexts(const std::string& path, const Contexts& contexts) {
  if (path.empty()) return Unavailable("no place for contexts: set WEIR_CONTEXTS or HOME");
  YAML::Emitter out;
  out << YAML::BeginMap << YAML::Key << "current" << YAML::Value << YAML::DoubleQuoted
      << contexts.current << YAML::Key << "contexts" << YAML::Value << contexts.by_name
      << YAML::EndMap;
  const std::filesystem::path target(path), fresh(path + ".new");
  std::error_code error;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
  std::ofstream file(fresh);
  std::filesystem::permissions(
      fresh, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, error);
  file << out.c_str() << "\n";
  file.close();
  if (!file)
    return Unavailable(StrCat("cannot write ", fresh.string(), ": ", std::strerror(errno)));
  std::filesystem::rename(fresh, target, error);
  if (error) return Unavailable(StrCat("cannot write ", path, ": ", error.message()));
  return OkStatus();
}

StatusOr<Context> FindContext(const Contexts& contexts, const std::string& name) {
  const std::string& wanted = name.empty() ? contexts.current : name;
  if (wanted.empty()) return Context();
  const auto found = contexts.by_name.find(wanted);
  if (found != contexts.by_name.end()) return found->second;
  return NotFound(
      StrCat("unknown context '", wanted, "'; valid: ", ContextNames(contexts.by_name)));
}

}  // namespace weir::cli
