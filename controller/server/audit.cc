// SPDX-License-Identifier: Apache-2.0
#include "controller/server/audit.h"

#include <algorithm>
#include <charconv>

#include "controller/messages/json.h"
#include "controller/server/status_mapping.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr uint32_t kRecordsDefault = 100, kRecordsMax = 1000;

void Shorten(std::string* text) {
  if (text->size() <= AuditTrail::kTextMax) return;
  size_t end = AuditTrail::kTextMax;
  while (end > 0 && (static_cast<unsigned char>((*text)[end]) & 0xc0) == 0x80) --end;
  text->resize(end);
  *text += "…";
}

std::string Line(const v1::AuditRecord& record) {
  const std::string who = record.principal().empty()
                              ? "nobody known"
                              : StrCat(record.principal(), " (", record.proof(), ")");
  return StrCat(who, " from ", record.peer(), ": ", record.method(), " ", record.target(), ": ",
                record.outcome(), record.reason().empty() ? "" : ": ", record.reason());
}

}  // namespace

v1::AuditRecord RefusalRecord(const Caller* caller, const Origin& from, const std::string& method,
                              const std::string& target, const Status& why) {
  v1::AuditRecord record;
  if (caller != nullptr) {
    record.set_principal(caller->name);
    record.set_proof(caller->proof);
  }
  record.set_peer(from.peer);
  record.set_request_id(from.request_id);
  record.set_method(method);
  record.set_target(target);
  record.set_outcome(std::string(CodeName(why.code())));
  record.set_reason(Message(why));
  record.set_refused(true);
  return record;
}

v1::AuditRecord FileRecord(const std::string& method, const std::string& path,
                           const std::string& before, const StatusOr<std::string>& after) {
  v1::AuditRecord record;
  record.set_proof("file");
  record.set_method(method);
  record.set_target(path);
  record.set_before(before);
  record.set_after(after.ok() ? *after : before);
  record.set_outcome(std::string(CodeName(after.status().code())));
  if (!after.ok()) record.set_reason(Message(after.status()));
  return record;
}

void AuditTrail::Add(v1::AuditRecord record) {
  for (std::string* text : {record.mutable_target(), record.mutable_before(),
                            record.mutable_after(), record.mutable_reason()}) {
    Shorten(text);
  }
  LogFields fields;
  if (!record.request_id().empty()) fields.emplace_back("request_id", record.request_id());
  Log(record.refused() ? LogLevel::kWarning : LogLevel::kInfo, "audit", Line(record), fields);
  const AuditEntry entry{.unix_s = clock_.UnixSeconds(),
                         .actor = record.principal(),
                         .action = record.method(),
                         .target = record.target(),
                         .detail = ToCompactJson(record),
                         .refused = record.refused()};
  if (const Status kept = store_.AddAudit(entry); !kept.ok()) {
    Log(LogLevel::kError, "audit", StrCat("not stored: ", Message(kept)));
  }
}

Status AuditTrail::List(const v1::ListAuditRequest& request, v1::ListAuditResponse* response) {
  int64_t before = 0;
  const std::string& token = request.page_token();
  if (!token.empty()) {
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), before);
    if (error != std::errc() || end != token.data() + token.size() || before <= 0) {
      return InvalidArgument(StrCat("page_token is '", token.substr(0, 40), "', not of a page"));
    }
  }
  const size_t size =
      std::min(request.page_size() == 0 ? kRecordsDefault : request.page_size(), kRecordsMax);
  WEIR_ASSIGN_OR_RETURN(const auto entries, store_.ListAudit(size + 1, before));
  for (const AuditEntry& entry : entries) {
    if (static_cast<size_t>(response->records_size()) == size) {
      response->set_next_page_token(response->records().rbegin()->id());
      break;
    }
    v1::AuditRecord* record = response->add_records();
    if (!FromJson(entry.detail, record).ok()) {  // of an earlier release: a text
      record->set_principal(entry.actor);
      record->set_method(entry.action);
      record->set_target(entry.target);
      record->set_reason(entry.detail);
    }
    record->set_id(std::to_string(entry.id));
    record->set_unix_s(entry.unix_s);
  }
  return OkStatus();
}

bool AuditTrail::TakesRefusal(const std::string& peer) {
  MutexLock lock(mutex_);
  const TimePoint now = clock_.Now();
  if (now >= window_end_) {
    if (left_out_ > 0) {
      Log(LogLevel::kWarning, "audit",
          StrCat(left_out_, " more refusals in the window before are not in the trail"));
    }
    window_end_ = now + kWindow;
    refusals_.clear();
    kept_ = 0;
    left_out_ = 0;
  }
  if (kept_ >= kRefusalsMax || ++refusals_[peer] > kRefusalsOfPeerMax) {
    ++left_out_;
    return false;
  }
  ++kept_;
  return true;
}

}  // namespace weir
