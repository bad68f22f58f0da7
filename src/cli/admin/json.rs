//! Responses in the JSON mapping of protobuf.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>.

use prost::Message;
use prost_reflect::DynamicMessage;

use crate::cli::printable::printable_json;
use crate::json_messages::{POOL, write};

/// Returns a message as one line of JSON. Members with default values are included.
///
/// # Panics
///
/// If there is no message of this name.
pub(super) fn to_json(name: &str, message: &impl Message) -> String {
    let descriptor = POOL.get_message_by_name(name).expect("the name of a message");
    let dynamic = DynamicMessage::decode(descriptor, &*message.encode_to_vec())
        .expect("the bytes of this message");
    printable_json(&write(&dynamic))
}

/// Adds a member to an object that has others.
pub(super) fn with_member(object: &str, name: &str, text: &str) -> String {
    let members = object.strip_suffix('}').unwrap_or(object);
    format!("{members},{}:{}}}", serde_json::json!(name), serde_json::json!(text))
}
