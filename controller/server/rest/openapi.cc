// SPDX-License-Identifier: Apache-2.0
#include "controller/server/rest/openapi.h"

#include <google/protobuf/descriptor.h>

#include <nlohmann/json.hpp>
#include <set>

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

std::string Reference(const Descriptor* message) {
  return "#/components/schemas/" + message->name();
}

// Follows the proto3 JSON form: 64-bit integers are strings of digits.
Json ValueSchema(const FieldDescriptor* field, std::set<const Descriptor*>* used) {
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
      for (int i = 0; i < field->enum_type()->value_count(); ++i) {
        names.push_back(field->enum_type()->value(i)->name());
      }
      return {{"type", "string"}, {"enum", std::move(names)}};
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return {{"type", "string"}};
    case FieldDescriptor::CPPTYPE_MESSAGE:
      used->insert(field->message_type());
      return {{"$ref", Reference(field->message_type())}};
  }
  return Json::object();
}

Json FieldSchema(const FieldDescriptor* field, std::set<const Descriptor*>* used) {
  if (field->is_map()) {
    return {{"type", "object"},
            {"additionalProperties", ValueSchema(field->message_type()->map_value(), used)}};
  }
  if (!field->is_repeated()) return ValueSchema(field, used);
  return {{"type", "array"}, {"items", ValueSchema(field, used)}};
}

Json MessageSchema(const Descriptor* message, std::set<const Descriptor*>* used) {
  Json properties = Json::object();
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    properties[field->name()] = FieldSchema(field, used);
  }
  Json schema = {
      {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
  return schema;
}

bool HasBody(const Route& route) {
  const std::string_view verb = route.verb;
  return verb == "POST" || verb == "PUT";
}

bool InPath(const Route& route, const std::string& field) {
  return std::string_view(route.pattern).find("{" + field + "}") != std::string_view::npos;
}

Json Parameters(const Route& route, const Descriptor* request, std::set<const Descriptor*>* used) {
  Json parameters = Json::array();
  for (int i = 0; i < request->field_count(); ++i) {
    const FieldDescriptor* field = request->field(i);
    const bool in_path = InPath(route, field->name());
    if (!in_path && HasBody(route)) continue;
    Json parameter = {{"name", field->name()},
                      {"in", in_path ? "path" : "query"},
                      {"required", in_path},
                      {"schema", FieldSchema(field, used)}};
    if (field->is_repeated()) {
      parameter["style"] = "form";
      parameter["explode"] = false;
    }
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

Json Operation(const Route& route, std::set<const Descriptor*>* used) {
  const auto* method = MethodOf(route);
  used->insert(method->output_type());
  const char* media = route.event_stream ? "text/event-stream" : "application/json";
  Json operation = {{"operationId", route.method}, {"summary", route.summary}};
  operation["parameters"] = Parameters(route, method->input_type(), used);
  if (HasBody(route)) {
    used->insert(method->input_type());
    operation["requestBody"]["content"]["application/json"]["schema"]["$ref"] =
        Reference(method->input_type());
  }
  operation["responses"]["200"] = {
      {"description", "OK"},
      {"content", {{media, {{"schema", {{"$ref", Reference(method->output_type())}}}}}}}};
  for (const char* code : kErrors) {
    operation["responses"][code]["$ref"] = "#/components/responses/Error";
  }
  if (std::string_view(route.verb) != "GET") {
    for (const char* code : kErrorsWithBody) {
      operation["responses"][code]["$ref"] = "#/components/responses/Error";
    }
  }
  operation["x-role"] = RoleName(route.role);
  return operation;
}

}  // namespace

std::string OpenApiDocument(const std::string& version) {
  Json document;
  document["openapi"] = "3.0.3";
  document["info"] = {{"title", "Weir controller"}, {"version", version}};
  std::set<const Descriptor*> used;
  for (const Route& route : Routes()) {
    std::string verb = route.verb;
    for (char& c : verb) c = static_cast<char>(c - 'A' + 'a');
    document["paths"][route.pattern][verb] = Operation(route, &used);
  }
  // Schemas refer to further messages, so this repeats until there are no new ones.
  std::map<std::string, Json> schemas;
  for (size_t before = 0; before != used.size();) {
    before = used.size();
    for (const Descriptor* message : std::set<const Descriptor*>(used)) {
      if (!schemas.contains(message->name()))
        schemas[message->name()] = MessageSchema(message, &used);
    }
  }
  for (auto& [name, schema] : schemas) document["components"]["schemas"][name] = std::move(schema);
  document["components"]["schemas"]["Status"] = {
      {"type", "object"},
      {"properties",
       {{"code", {{"type", "integer"}}},
        {"message", {{"type", "string"}}},
        {"details", {{"type", "array"}, {"items", {{"type", "object"}}}}}}},
      {"required", {"code", "message", "details"}}};
  document["components"]["responses"]["Error"] = {
      {"description", "The error as google.rpc.Status"},
      {"content", {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Status"}}}}}}}};
  document["components"]["securitySchemes"]["bearer"] = {{"type", "http"}, {"scheme", "bearer"}};
  return document.dump(1);
}

}  // namespace weir
