//! The description of these routes.

use serde_json::Value;

const STATIC: &str = include_str!("openapi.json");

/// Adds the routes and their schemas to a description.
pub(in crate::api::http) fn describe(document: &mut Value) {
    let own: Value = serde_json::from_str(STATIC).expect("a test reads the file");
    for parts in ["/paths", "/components/schemas", "/components/responses"] {
        let own = own.pointer(parts).and_then(Value::as_object);
        let all = document.pointer_mut(parts).and_then(Value::as_object_mut);
        let (Some(own), Some(all)) = (own, all) else { continue };
        all.extend(own.clone());
    }
}
