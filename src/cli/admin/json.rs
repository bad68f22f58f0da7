//! Responses in the JSON mapping of protobuf.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::ser::Serializer;

use crate::cli::printable::printable_json;

/// The descriptors of all messages.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET)
        .expect("the descriptors are made at build time")
});

/// Returns a message as one line of JSON. Members with default values are included.
///
/// # Panics
///
/// If there is no message of this name.
pub(super) fn to_json(name: &str, message: &impl Message) -> String {
    let descriptor = POOL.get_message_by_name(name).expect("the name of a message");
    let dynamic = DynamicMessage::decode(descriptor, &*message.encode_to_vec())
        .expect("the bytes of this message");
    let options = SerializeOptions::new().skip_default_fields(false);
    let mut json = Vec::new();
    dynamic
        .serialize_with_options(&mut Serializer::new(&mut json), &options)
        .expect("messages are JSON");
    printable_json(&String::from_utf8(json).expect("JSON is text"))
}

/// Adds a member to an object that has others.
pub(super) fn with_member(object: &str, name: &str, text: &str) -> String {
    let members = object.strip_suffix('}').unwrap_or(object);
    format!("{members},{}:{}}}", serde_json::json!(name), serde_json::json!(text))
}
