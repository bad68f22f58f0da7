//! Fields of a request that are in its path: `/v1/projects/{projectId}/rules/{rule.name}`.

use axum::http::StatusCode;
use prost_reflect::{DynamicMessage, Kind, ReflectMessage, Value};

use crate::api::http::query::decode;
use crate::api::http::rejection::Rejection;
use rlaas_auth::AdminRoute;

/// The project "", which can't be in a path.
const UNNAMED: &str = "_";

/// Sets the fields that the path of a request has.
///
/// # Errors
///
/// A [`Rejection`] if the path is not percent-encoded UTF-8, a number is none, or the body has
/// another value.
pub(super) fn set_fields(
    route: &AdminRoute,
    path: &str,
    message: &mut DynamicMessage,
) -> Result<(), Rejection> {
    for (field, value) in route.fields(path).unwrap_or_default() {
        // Queries have `+` for a space, paths have not.
        let text = decode(&value.replace('+', "%2B"));
        let text = text.ok_or_else(|| rejected(format!("path: {field} must be UTF-8")))?;
        let is_project = ["projectId", "project.id"].contains(&field);
        let text = if is_project && text == UNNAMED { String::new() } else { text };
        set(message, field, field, text)?;
    }
    Ok(())
}

/// Sets the field at `rest`, the end of `path`.
fn set(
    message: &mut DynamicMessage,
    path: &str,
    rest: &str,
    text: String,
) -> Result<(), Rejection> {
    let (name, below) = match rest.split_once('.') {
        Some((name, below)) => (name, Some(below)),
        None => (rest, None),
    };
    let field = message.descriptor().get_field_by_json_name(name);
    let field = field.expect("a test sets the fields of every route");
    if let Some(below) = below {
        let inner = message.get_field_mut(&field).as_message_mut().expect("a message");
        return set(inner, path, below, text);
    }
    let value = match field.kind() {
        Kind::Uint64 => {
            let number = text.parse().map_err(|_| rejected(format!("{path} must be a number")))?;
            Value::U64(number)
        }
        _ => Value::String(text),
    };
    if message.has_field(&field) && *message.get_field(&field) != value {
        return Err(rejected(format!("{path} must be unset, or that of the path")));
    }
    message.set_field(&field, value);
    Ok(())
}

fn rejected(detail: String) -> Rejection {
    Rejection::body(StatusCode::BAD_REQUEST, detail)
}
