// SPDX-License-Identifier: Apache-2.0
#include "controller/server/rest/openapi.h"

#include <google/protobuf/descriptor.h>

#include <nlohmann/json.hpp>
#include <set>

#include "controller/server/rest/api_comments.h"
#include "controller/server/rest/routes.h"
#include "weir/v1/admin.pb.h"

namespace weir {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using Json = nlohmann::ordered_json;

// Status codes beside 200 that any operation may answer (status_mapping.h), and those that only
// operations with a body answer.
constexpr const char* kErrors[] = {"400", "401", "403", "404",    "429",
                                   "500", "503", "504", "default"};
constexpr const char* kErrorsWithBody[] = {"409", "412", "413", "415"};

// Messages by what they are part of. An answer may get fields later, so its messages are open;
// requests with unknown fields are refused.
using Messages = std::set<const Descriptor*>;

void Describe(const std::string& comment, Json* schema) {
  if (!comment.empty()) (*schema)["description"] = comment;
}

// Strings whose comment lists their values, in what the controller itself says: other values come
// from agents and ranks as they are.
Json StringSchema(const FieldDescriptor* field) {
  Json schema = {{"type", "string"}};
  const std::string& file = field->file()->name();
  if (!file.ends_with("admin.proto") && !file.ends_with("plan.proto")) return schema;
  const auto values = ListedValues(CommentOf(field));
  if (!values.empty()) {
    schema["enum"] = values;
    schema["enum"].push_back("");
  }
  return schema;
}

std::string Reference(const Descriptor* message) {
  return "#/components/schemas/" + message->name();
}

// Follows the proto3 JSON form: 64-bit integers are strings of digits.
Json ValueSchema(const FieldDescriptor* field, Messages* used) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return {{"type", "integer"}, {"format", "int32"}};
    case FieldDescriptor::CPPTYPE_UINT32:
      return {{"type", "integer"}, {"minimum", 0}, {"maximum", 4294967295u}};
    case FieldDescriptor::CPPTYPE_INT64:
      return {{"type", "string"}, {"pattern", "^-?[0-9]+$"}};
    case FieldDescriptor::CPPTYPE_UINT64:
      return {{"type", "string"}, {"pattern", "^[0-9]+$"}};
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return {{"type", "number"}};
    case FieldDescriptor::CPPTYPE_BOOL:
      return {{"type", "boolean"}};
    case FieldDescriptor::CPPTYPE_ENUM: {
      Json names = Json::array();
      Json meanings = Json::array();
      for (int i = 0; i < field->enum_type()->value_count(); ++i) {
        names.push_back(field->enum_type()->value(i)->name());
        meanings.push_back(CommentOf(field->enum_type()->value(i)));
      }
      return {{"type", "string"},
              {"enum", std::move(names)},
              {"x-enum-descriptions", std::move(meanings)}};
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return StringSchema(field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      used->insert(field->message_type());
      return {{"$ref", Reference(field->message_type())}};
  }
  return Json::object();
}

Json FieldSchema(const FieldDescriptor* field, Messages* used) {
  Json schema;
  if (field->is_map()) {
    schema = {{"type", "object"},
              {"additionalProperties", ValueSchema(field->message_type()->map_value(), used)}};
  } else if (field->is_repeated()) {
    schema = {{"type", "array"}, {"items", ValueSchema(field, used)}};
  } else {
    schema = ValueSchema(field, used);
  }
  const std::string comment = CommentOf(field);
  // OpenAPI 3.0 ignores what stands beside a reference.
  if (schema.contains("$ref") && !comment.empty()) schema = {{"allOf", Json::array({schema})}};
  Describe(comment, &schema);
  return schema;
}

Json MessageSchema(const Descriptor* message, bool open, Messages* used) {
  Json properties = Json::object();
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    properties[field->name()] = FieldSchema(field, used);
  }
  Json schema = {{"type", "object"}};
  Describe(CommentOf(message), &schema);
  schema["properties"] = std::move(properties);
  schema["additionalProperties"] = open;
  return schema;
}

// `messages` and all that they refer to.
Messages Closure(Messages messages) {
  for (size_t before = 0; before != messages.size();) {
    before = messages.size();
    for (const Descriptor* message : Messages(messages)) MessageSchema(message, true, &messages);
  }
  return messages;
}

bool HasBody(const Route& route) {
  const std::string_view verb = route.verb;
  return verb == "POST" || verb == "PUT";
}

bool InPath(const Route& route, const std::string& field) {
  return std::string_view(route.pattern).find("{" + field + "}") != std::string_view::npos;
}

Json Parameters(const Route& route, const Descriptor* request, Messages* used) {
  Json parameters = Json::array();
  for (int i = 0; i < request->field_count(); ++i) {
    const FieldDescriptor* field = request->field(i);
    const bool in_path = InPath(route, field->name());
    if (!in_path && HasBody(route)) continue;
    Json parameter = {{"name", field->name()},
                      {"in", in_path ? "path" : "query"},
                      {"required", in_path},
                      {"schema", FieldSchema(field, used)}};
    Describe(CommentOf(field), &parameter);
    if (field->is_repeated()) {
      parameter["style"] = "form";
      parameter["explode"] = false;
    }
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

// The ways to identify a caller: a token or a session, or none if the listener trusts everyone.
Json Security(const Route& route, const OpenApiOptions& options) {
  Json ways = Json::array({{{"bearer", Json::array()}}});
  Json session = {{"session", Json::array()}};
  if (std::string_view(route.verb) != "GET") session["csrf"] = Json::array();
  ways.push_back(std::move(session));
  if (options.local.has_value() && *options.local >= route.role) ways.push_back(Json::object());
  return ways;
}

Json Operation(const Route& route, const OpenApiOptions& options, Messages* asked,
               Messages* answered) {
  const auto* method = MethodOf(route);
  answered->insert(method->output_type());
  const char* media = route.event_stream ? "text/event-stream" : "application/json";
  Json operation = {{"operationId", route.method}, {"summary", route.summary}};
  operation["description"] = StrCat("Needs the role ", RoleName(route.role), ".");
  operation["parameters"] = Parameters(route, method->input_type(), asked);
  if (HasBody(route)) {
    asked->insert(method->input_type());
    operation["requestBody"]["content"]["application/json"]["schema"]["$ref"] =
        Reference(method->input_type());
  }
  operation["responses"]["200"] = {
      {"description", route.event_stream ? "Events, each the data of a server-sent event" : "OK"},
      {"content", {{media, {{"schema", {{"$ref", Reference(method->output_type())}}}}}}}};
  for (const char* code : kErrors) {
    operation["responses"][code]["$ref"] = "#/components/responses/Error";
  }
  if (std::string_view(route.verb) != "GET") {
    for (const char* code : kErrorsWithBody) {
      operation["responses"][code]["$ref"] = "#/components/responses/Error";
    }
  }
  operation["security"] = Security(route, options);
  operation["x-role"] = RoleName(route.role);
  return operation;
}

}  // namespace

std::string OpenApiDocument(const OpenApiOptions& options) {
  Json document;
  document["openapi"] = "3.0.3";
  document["info"] = {{"title", "Weir controller"}, {"version", options.version}};
  Messages asked, answered;
  for (const Route& route : Routes()) {
    std::string verb = route.verb;
    for (char& c : verb) c = static_cast<char>(c - 'A' + 'a');
    document["paths"][route.pattern][verb] = Operation(route, options, &asked, &answered);
  }
  answered = Closure(std::move(answered));
  asked = Closure(std::move(asked));
  std::map<std::string, Json> schemas;
  Messages known;
  for (const Descriptor* message : asked)
    schemas[message->name()] = MessageSchema(message, answered.contains(message), &known);
  for (const Descriptor* message : answered)
    schemas[message->name()] = MessageSchema(message, true, &known);
  for (auto& [name, schema] : schemas) document["components"]["schemas"][name] = std::move(schema);
  document["components"]["schemas"]["Status"] = {
      {"type", "object"},
      {"properties",
       {{"code", {{"type", "integer"}, {"description", "gRPC's number of the kind of error"}}},
        {"message", {{"type", "string"}, {"description", "What was expected and found"}}},
        {"details",
         {{"type", "array"}, {"description", "Always empty"}, {"items", {{"type", "object"}}}}}}},
      {"required", {"code", "message", "details"}}};
  document["components"]["responses"]["Error"] = {
      {"description", "The error as google.rpc.Status"},
      {"content", {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Status"}}}}}}}};
  auto& schemes = document["components"]["securitySchemes"];
  schemes["bearer"] = {{"type", "http"},
                       {"scheme", "bearer"},
                       {"description", "A token whose SHA-256 the token file has"}};
  schemes["session"] = {
      {"type", "apiKey"},
      {"in", "cookie"},
      {"name", StrCat("weir_session_", options.port)},
      {"description",
       "Of a person at the page: POST /v1/session with a code or a token begins one"}};
  schemes["csrf"] = {{"type", "apiKey"},
                     {"in", "header"},
                     {"name", "Weir-CSRF"},
                     {"description", "What POST /v1/session answered as csrf"}};
  return document.dump(1);
}

}  // namespace weir
