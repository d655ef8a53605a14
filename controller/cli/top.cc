// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/top.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "controller/cli/render.h"
#include "controller/messages/mapping.h"

namespace weir::cli {
namespace {

using DeadlineClock = std::chrono::system_clock;  // of gRPC's deadlines

std::string ChoiceOf(const v1::SeriesPoint& point) {
  if (point.codec().empty()) return "-";
  v1::Choice choice;
  choice.set_codec(point.codec());
  choice.set_collective(point.collective());
  choice.set_ratio(point.ratio());
  choice.set_bits(point.bits());
  return ChoiceLabel(ToModel(choice));
}

// The last step that the controller knows of; empty when it knows none.
StatusOr<v1::SeriesPoint> LastPoint(Client& client, const v1::Job& job) {
  constexpr uint64_t kSteps = 10;  // ranks report in batches
  v1::GetSeriesRequest request;
  request.set_job(job.name());
  request.set_since_step(job.step() > kSteps ? job.step() - kSteps : 0);
  v1::Series series;
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::GetSeries, request, &series));
  return series.points().empty() ? v1::SeriesPoint() : *series.points().rbegin();
}

StatusOr<v1::ListJobsResponse> Jobs(Client& client, const std::string& name) {
  v1::ListJobsResponse jobs;
  if (name.empty()) {
    WEIR_RETURN_IF_ERROR(client.CallAllPages(&v1::AdminService::Stub::ListJobs, {}, &jobs));
    return jobs;
  }
  v1::GetJobRequest one;
  one.set_name(name);
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::GetJob, one, jobs.add_jobs()));
  return jobs;
}

StatusOr<Table> TopTable(Client& client, const std::string& name) {
  Table table{{"JOB", "STATE", "STEP", "LOSS", "CHOICE", "BENEFIT", "STEP-TIME", "COMPUTE", "CODEC",
               "NETWORK", "EXPOSED", "GAIN", "BANDWIDTH", "LATENCY"},
              {}};
  WEIR_ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, Jobs(client, name));
  for (const v1::Job& job : jobs.jobs()) {
    if (name.empty() && job.state() == "ended") continue;
    const StatusOr<v1::SeriesPoint> read = LastPoint(client, job);
    // A job may end between the two calls.
    if (!read.ok() && read.status().code() != StatusCode::kNotFound) return read.status();
    const v1::SeriesPoint point = read.ok() ? *read : v1::SeriesPoint();
    table.rows.push_back(
        {job.name(), job.pinned().empty() ? job.state() : job.state() + ",pinned",
         std::to_string(job.step()), OrDash(job.loss(), NumberText), ChoiceOf(point),
         job.benefit().text(), OrDash(job.step_s(), SecondsText),
         OrDash(point.compute_s(), SecondsText), OrDash(point.codec_s(), SecondsText),
         OrDash(point.measured_network_s(), SecondsText), OrDash(point.exposed_s(), SecondsText),
         OrDash(job.gain(), NumberText), OrDash(point.bandwidth_bytes_per_s(), BandwidthText),
         OrDash(point.latency_s(), SecondsText)});
  }
  return table;
}

// Lines no longer than the terminal is wide, so that none wraps; a character is not cut in two.
std::string Cut(const std::string& text, size_t columns) {
  std::string out;
  size_t column = 0;
  for (const char c : text) {
    const bool continues = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
    column = c == '\n' ? 0 : column + (continues ? 0 : 1);
    if (column <= columns) out += c;
  }
  return out;
}

void Draw(const Table& table, const TopOptions& options, bool first) {
  std::string text = Render(table);
  if (table.rows.empty()) text += "no job is attached\n";
  if (options.terminal_columns > 0) {
    // Home, the text, then clear what is left of the one before: nothing flickers.
    text = "\033[H" + std::string(first ? "\033[J" : "") +
           Cut(text, static_cast<size_t>(options.terminal_columns));
    for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 4) {
      text.replace(at, 1, "\033[K\n");
    }
    text += "\033[J";
  } else if (!first) {
    text = "\n" + text;
  }
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

Status Top(Client& client, const TopOptions& options) {
  if (!(options.interval_s >= 0.1 && options.interval_s <= 3600)) {
    return InvalidArgument(
        StrCat("interval ", options.interval_s, " s: expected 0.1 to 3600 seconds"));
  }
  const auto interval = std::chrono::duration_cast<DeadlineClock::duration>(
      std::chrono::duration<double>(options.interval_s));
  v1::WatchRequest watch;
  for (const char* kind : {"step", "job", "decision"}) watch.add_kinds(kind);
  watch.set_job(options.job);
  for (unsigned drawn = 0;;) {
    // Listens first, so that what happens while the table is drawn is not missed.
    const auto begin = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    client.Prepare(&context, /*with_deadline=*/false);
    context.set_deadline(DeadlineClock::now() + 5 * interval);
    const auto reader = client.stub().Watch(&context, watch);
    WEIR_ASSIGN_OR_RETURN(const Table table, TopTable(client, options.job));
    Draw(table, options, drawn == 0);
    ++drawn;
    if (drawn == options.iterations) {
      context.TryCancel();
      return OkStatus();
    }
    v1::Event event;
    reader->Read(&event);
    context.TryCancel();
    while (reader->Read(&event)) {
    }
    reader->Finish();  // a controller that is gone is reported by the next call
    std::this_thread::sleep_until(begin + interval);
  }
}

}  // namespace weir::cli
