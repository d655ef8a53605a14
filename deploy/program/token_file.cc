// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/token_file.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr size_t kTokenMin = 16, kTokenMax = 512;
constexpr size_t kNameMax = 128;
constexpr size_t kFileBytesMax = 64u << 10;
constexpr std::string_view kBearer = "Bearer ";

Status CheckToken(const std::string& token, const std::string& where) {
  const bool visible = std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7f; });
  if (visible && token.size() >= kTokenMin && token.size() <= kTokenMax) return OkStatus();
  return InvalidArgument(StrCat("expected a token of ", kTokenMin, " to ", kTokenMax,
                                " visible characters in ", where, ", found ", token.size(),
                                visible ? "" : " bytes, not all of them visible characters"));
}

bool IsName(const std::string& text) {
  return text.size() <= kNameMax && std::ranges::all_of(text, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

}  // namespace

StatusOr<std::string> ReadTokenFile(const std::string& path) {
  std::ifstream file(path);
  std::string token, more;
  if (!file || !(file >> token)) return InvalidArgument(StrCat("no token in ", path));
  if (file >> more) {
    return InvalidArgument(StrCat("expected one token and nothing else in ", path));
  }
  WEIR_RETURN_IF_ERROR(CheckToken(token, path));
  return token;
}

StatusOr<std::vector<TokenFile::Entry>> TokenFile::Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kFileBytesMax) {
    return InvalidArgument(StrCat(path, ": expected at most ", kFileBytesMax, " bytes"));
  }
  std::vector<Entry> entries;
  std::istringstream lines(text);
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = StrCat(path, ":", ++number);
    std::istringstream words(line);
    Entry entry;
    std::string more;
    if (!(words >> entry.token) || entry.token.starts_with('#')) continue;
    if (words >> more) {
      entry.name = std::exchange(entry.token, more);
    } else {
      entry.name = "token";
    }
    if (words >> more || !IsName(entry.name)) {
      return InvalidArgument(StrCat(
          "expected TOKEN, or NAME TOKEN with a name of letters, digits and . _ - in ", where));
    }
    WEIR_RETURN_IF_ERROR(CheckToken(entry.token, where));
    if (entries.size() == kTokensMax) {
      return InvalidArgument(StrCat("expected at most ", kTokensMax, " tokens in ", path));
    }
    entries.push_back(std::move(entry));
  }
  if (entries.empty()) return InvalidArgument(StrCat("no token in ", path));
  return entries;
}

StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(std::string path, const char* part,
                                                     const Clock& clock) {
  std::unique_ptr<TokenFile> file(new TokenFile(std::move(path), part, clock));
  const MutexLock lock(file->mutex_);
  file->seen_ = StateOf(file->path_);
  WEIR_ASSIGN_OR_RETURN(file->entries_, Read(file->path_));
  return file;
}

void TokenFile::Refresh() {
  const FileState now = StateOf(path_);
  if (now == seen_) return;
  seen_ = now;
  StatusOr<std::vector<Entry>> read = Read(path_);
  if (!read.ok()) {
    Log(LogLevel::kError, part_,
        StrCat("the changed token file is invalid, the previous tokens stay in use: ",
               Message(read.status())));
    return;
  }
  entries_ = *std::move(read);
  Log(LogLevel::kInfo, part_, StrCat("token file ", path_, " was read again"));
}

StatusOr<std::string> TokenFile::Find(std::string_view authorization, const std::string& peer) {
  const MutexLock lock(mutex_);
  Refresh();
  if (!authorization.starts_with(kBearer)) {
    return MakeStatus(StatusCode::kUnauthenticated,
                      "expected the header 'Authorization: Bearer <token>'");
  }
  const std::string given(authorization.substr(kBearer.size()));
  Entry* found = nullptr;
  for (Entry& entry : entries_) {
    if (ConstantTimeEquals(given, entry.token)) found = &entry;
  }
  if (found == nullptr || !found->used) WEIR_RETURN_IF_ERROR(wrong_.Check(peer));
  if (found == nullptr) return wrong_.Refuse(peer);
  found->used = true;
  return found->name;
}

std::vector<std::string> TokenFile::Tokens() {
  const MutexLock lock(mutex_);
  Refresh();
  std::vector<std::string> tokens;
  for (const Entry& entry : entries_) tokens.push_back(entry.token);
  return tokens;
}

}  // namespace weir
