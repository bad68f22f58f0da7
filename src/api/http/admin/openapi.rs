//! The description of the routes of administration, made from the descriptors of the messages: it
//! has every method, every field, and the comments of the proto.

use prost_reflect::{Cardinality, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::{csv, method};
use rlaas_auth::{AdminApi, AdminRoute, Verb};

use crate::api::routes;

/// Statuses of errors, with the meaning of each.
const ERRORS: [(&str, &str); 10] = [
    ("400", "Invalid request, or not possible for these keys: detail names the field."),
    ("401", "Unknown caller: auth lists callers, and this one is not listed."),
    ("403", "The caller lacks the role; or auth lists nobody and the caller is not local."),
    (
        "404",
        "No such rule, key or revision; or no such project, or none that the caller has a role for.",
    ),
    ("408", "The body did not arrive in time."),
    ("409", "It exists, has another etag or revision, or there are as many as there may be."),
    ("413", "The body is too large."),
    ("415", "The content type is not application/json."),
    (
        "503",
        "The store or the audit does not answer, the server sheds load, or the keys of the issuer of \
     bearer tokens are not available.",
    ),
    ("504", "The deadline passed; a change may have been made."),
];

/// Adds the routes and the schemas of their messages to a description.
pub(in crate::api::http) fn describe(document: &mut Value) {
    let mut schemas = Map::new();
    for route in routes::all() {
        let operation = operation(route, &mut schemas);
        document["paths"][path_of(route)][route.verb.name()] = operation;
    }
    for (name, schema) in schemas {
        document["components"]["schemas"][name] = schema;
    }
}

/// Returns the schema of one event of a stream whose messages have `message`. OpenAPI 3.1 has no
/// word for the items of a stream; tools read the schema of `text/event-stream` as that of each.
fn event(message: &Value) -> Value {
    let text = "One event for each message, and one named `error` where the stream ends early.";
    let data = json!({
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": message,
    });
    json!({
        "type": "object",
        "description": text,
        "required": ["event", "data"],
        "properties": { "event": { "type": "string", "enum": ["message", "error"] }, "data": data },
    })
}

fn operation(route: &AdminRoute, schemas: &mut Map<String, Value>) -> Value {
    let method = method(route);
    let comment = comment(&method.parent_file(), method.path());
    let (summary, description) = comment.split_once("\n\n").unwrap_or((&comment, ""));
    let mut operation = json!({
        "tags": [if route.is_of_decisions() { "decisions" } else { "administration" }],
        "operationId": operation_id(route),
        "security": [{}, { "token": [] }],
        "summary": joined(summary),
        "description": joined(description),
    });
    let mut parameters = path_parameters(route, &method.input());
    if route.verb.has_body() {
        let schema = reference(&method.input(), schemas);
        let content = json!({ "application/json": { "schema": schema } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    } else {
        let in_path = |field: &FieldDescriptor| {
            parameters.iter().any(|parameter| parameter["name"] == field.json_name())
        };
        let in_query = query_parameters(&method.input(), |field| !in_path(field));
        parameters.extend(in_query);
    }
    if !parameters.is_empty() || !route.verb.has_body() {
        operation["parameters"] = parameters.into();
    }
    let schema = reference(&method.output(), schemas);
    let content = if method.is_server_streaming() {
        json!({ "text/event-stream": { "schema": event(&schema) } })
    } else {
        json!({ "application/json": { "schema": schema } })
    };
    let mut done = json!({ "description": "Done.", "content": content });
    if route.rpc == csv::RPC {
        let text = "A line for each day, after one with the names of the columns.";
        done["content"][csv::TYPE] = json!({ "schema": { "type": "string", "description": text } });
        let token = "Of the values: the pageToken of the next page. Missing: this is the last one.";
        let header = json!({ "description": token, "schema": { "type": "string" } });
        done["headers"] = json!({ (csv::NEXT_PAGE): header });
    }
    match route.verb {
        Verb::Delete => operation["responses"]["204"] = json!({ "description": "Done." }),
        Verb::Put => {
            operation["responses"]["200"] = done.clone();
            operation["responses"]["201"] = done;
        }
        _ if route.rpc.starts_with("Create") => operation["responses"]["201"] = done,
        _ => operation["responses"]["200"] = done,
    }
    if route.api == AdminApi::Reservations {
        let content = operation["responses"]["200"]["content"].clone();
        operation["responses"]["429"] = json!({ "description": "Denied.", "content": content });
    }
    let problem = json!({ "$ref": "#/components/schemas/Problem" });
    for (status, meaning) in ERRORS {
        let content = json!({ "application/problem+json": { "schema": problem } });
        operation["responses"][status] = json!({ "description": meaning, "content": content });
    }
    operation
}

/// Returns the path of a route. Generators refuse dots in names of parameters, and two names at the
/// same place: `{rule.name}` is `{ruleName}`.
fn path_of(route: &AdminRoute) -> String {
    let parts = route.path.split('{').map(|part| match part.split_once('}') {
        Some((name, rest)) => format!("{{{}}}{rest}", parameter_name(name)),
        None => part.to_owned(),
    });
    parts.collect()
}

/// Returns the name of the parameter for a field.
fn parameter_name(field: &str) -> String {
    match field.split_once('.') {
        Some((message, field)) => {
            let (first, rest) = field.split_at(1);
            format!("{message}{}{rest}", first.to_uppercase())
        }
        None => field.to_owned(),
    }
}

/// Returns the name of an operation. A method may have two.
fn operation_id(route: &AdminRoute) -> &'static str {
    if route.verb == Verb::Put { "PutRule" } else { route.rpc }
}

/// Returns the parameters in the path of a route.
fn path_parameters(route: &AdminRoute, message: &MessageDescriptor) -> Vec<Value> {
    let names = route.path.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let parameter = |(name, _): (&str, &str)| {
        let first = name.split('.').next().unwrap_or(name);
        let field = message.get_field_by_json_name(first);
        let comment = field.as_ref().map(field_comment).unwrap_or_default();
        json!({
            "name": parameter_name(name),
            "in": "path",
            "required": true,
            "description": comment,
            "schema": { "type": "string" },
        })
    };
    names.map(parameter).collect()
}

/// Returns the parameters of a request in its query: its fields that are no messages.
fn query_parameters(
    message: &MessageDescriptor,
    is_wanted: impl Fn(&FieldDescriptor) -> bool,
) -> Vec<Value> {
    let scalar = |field: &FieldDescriptor| match field.kind() {
        Kind::Message(inner) => inner.full_name().starts_with("google.protobuf."),
        _ => true,
    };
    let parameter = |field: FieldDescriptor| {
        let schema = match field.kind() {
            Kind::Enum(values) => {
                let names = values.values().map(|value| value.name().to_owned());
                json!({ "type": "string", "enum": names.collect::<Vec<_>>() })
            }
            Kind::Int32 | Kind::Uint32 => json!({ "type": "integer" }),
            Kind::Bool => json!({ "type": "boolean" }),
            _ => json!({ "type": "string" }),
        };
        let schema =
            if field.is_list() { json!({ "type": "array", "items": schema }) } else { schema };
        json!({
            "name": field.json_name(),
            "in": "query",
            "description": field_comment(&field),
            "schema": schema,
        })
    };
    message.fields().filter(|field| scalar(field) && is_wanted(field)).map(parameter).collect()
}

/// Returns a reference to the schema of a message, and adds the schema if it is new.
fn reference(message: &MessageDescriptor, schemas: &mut Map<String, Value>) -> Value {
    // `ratelimit.v1` has schemas of its own, which are stricter in responses, and `Problem` is the
    // document of errors.
    let is_taken = message.package_name() == "ratelimit.v1" || message.name() == "Problem";
    let prefix = if is_taken { "Message" } else { "" };
    let name = format!("{prefix}{}", message.name());
    if !schemas.contains_key(&name) {
        schemas.insert(name.clone(), Value::Null);
        let mut properties = Map::new();
        for field in message.fields() {
            let mut schema = schema(&field, schemas);
            schema["description"] = field_comment(&field).into();
            properties.insert(field.json_name().to_owned(), schema);
        }
        let schema = json!({
            "type": "object",
            "additionalProperties": false,
            "description": joined(&comment(&message.parent_file(), message.path())),
            "properties": properties,
        });
        schemas.insert(name.clone(), schema);
    }
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn schema(field: &FieldDescriptor, schemas: &mut Map<String, Value>) -> Value {
    if field.is_map() {
        let values = json!({ "type": "string" });
        return json!({ "type": ["object", "null"], "additionalProperties": values });
    }
    let single = match field.kind() {
        Kind::Message(message) if !message.full_name().starts_with("google.protobuf.") => {
            reference(&message, schemas)
        }
        Kind::Message(_) | Kind::String | Kind::Bytes => json!({ "type": ["string", "null"] }),
        Kind::Bool => json!({ "type": ["boolean", "null"] }),
        Kind::Enum(values) => {
            let names = values.values().map(|value| value.name().to_owned());
            json!({ "oneOf": [
                { "enum": names.collect::<Vec<_>>() },
                { "type": ["integer", "null"] },
            ] })
        }
        _ => json!({ "type": ["integer", "string", "null"] }),
    };
    match field.cardinality() {
        Cardinality::Repeated => json!({ "type": ["array", "null"], "items": single }),
        _ if single.get("$ref").is_some() => json!({ "oneOf": [single, { "type": "null" }] }),
        _ => single,
    }
}

fn field_comment(field: &FieldDescriptor) -> String {
    joined(&comment(&field.parent_message().parent_file(), field.path()))
}

/// Returns the comment before an element of a proto.
fn comment(file: &FileDescriptor, path: &[i32]) -> String {
    let source = file.file_descriptor_proto().source_code_info.as_ref();
    let mut locations = source.into_iter().flat_map(|source| &source.location);
    let location = locations.find(|location| location.path == path);
    let comment = location.and_then(|location| location.leading_comments.as_deref());
    let lines = comment.unwrap_or_default().lines().map(str::trim);
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// Returns a text without line breaks inside of its sentences.
fn joined(text: &str) -> String {
    text.replace('\n', " ")
}
