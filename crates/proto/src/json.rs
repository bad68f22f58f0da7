//! Messages in the JSON mapping of protobuf, by their descriptors.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage, SerializeOptions, Value,
};
use prost_types::FileDescriptorSet;

/// The descriptors of all messages, with those of the details of errors.
pub static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let mut details = FileDescriptorSet::decode(tonic_types::pb::FILE_DESCRIPTOR_SET)
        .expect("the descriptors are made at build time");
    // `google.rpc.Status` has its full path among our own.
    details.file.retain(|file| file.name() != "status.proto");
    let mut pool = DescriptorPool::new();
    pool.decode_file_descriptor_set(crate::FILE_DESCRIPTOR_SET)
        .and_then(|()| pool.add_file_descriptor_set(details))
        .expect("the descriptors are made at build time");
    pool
});

/// Writes a message. Members with default values are included, others that are not set are not, nor
/// are times that JSON can't express: other instances, or others who may write to the store, may
/// have put those there.
pub fn write(message: &DynamicMessage) -> String {
    try_write(message).or_else(|| try_write(&expressible(message))).unwrap_or_else(|| "{}".into())
}

fn try_write(message: &DynamicMessage) -> Option<String> {
    let options =
        SerializeOptions::new().skip_default_fields(false).stringify_64_bit_integers(true);
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut text);
    message.serialize_with_options(&mut serializer, &options).ok()?;
    String::from_utf8(text).ok()
}

/// Reads a message with this full name, of the type with that name.
///
/// # Errors
///
/// A member is unknown, or its value is not one of its field.
///
/// # Panics
///
/// If no message has the name.
pub fn message<M: Message + Default>(
    name: &str,
    json: serde_json::Value,
) -> Result<M, serde_json::Error> {
    let descriptor = POOL.get_message_by_name(name).expect("the name of a message");
    let message = DynamicMessage::deserialize(descriptor, json)?;
    Ok(message.transcode_to().expect("the type with this name"))
}

/// Returns the message without the times that JSON can't express.
fn expressible(message: &DynamicMessage) -> DynamicMessage {
    let mut left = message.clone();
    for (field, value) in message.fields() {
        let inner = |value: &Value| match value {
            Value::Message(inner) if is_object(&inner.descriptor()) => {
                Some(Value::Message(expressible(inner)))
            }
            Value::Message(inner) => try_write(inner).map(|_| value.clone()),
            other => Some(other.clone()),
        };
        let kept = match value {
            Value::List(values) => Some(Value::List(values.iter().filter_map(inner).collect())),
            value => inner(value),
        };
        match kept {
            Some(kept) => left.set_field(&field, kept),
            None => left.clear_field(&field),
        }
    }
    left
}

/// Returns `true` if the message is an object in JSON, not one of those with a form of their own.
pub fn is_object(message: &MessageDescriptor) -> bool {
    !message.full_name().starts_with("google.protobuf.")
}

#[cfg(test)]
mod tests {
    use crate::ratelimit::admin::v1::{Instance, ListInstancesResponse};
    use prost_types::{Duration, Timestamp};

    use super::*;

    #[test]
    fn times_that_json_cannot_express_are_left_out() {
        let instance = |id: &str, seconds, nanos| Instance {
            id: id.to_owned(),
            started_at: Some(Timestamp { seconds, nanos }),
            reported_at: Some(Timestamp { seconds: 0, nanos: 0 }),
            check_p50: Some(Duration { seconds: -5, nanos }),
            ..Instance::default()
        };
        // The year 10000, and a fraction of the other sign.
        let instances = vec![instance("one", 253_402_300_800, 7), instance("two", 1, 0)];
        let response = ListInstancesResponse { instances, ..Default::default() };
        let response = response.encode_to_vec();
        let descriptor = POOL.get_message_by_name("ratelimit.admin.v1.ListInstancesResponse");
        let descriptor = descriptor.expect("a message of the service");
        let message = DynamicMessage::decode(descriptor, &*response).expect("a message");
        let json: serde_json::Value = serde_json::from_str(&write(&message)).expect("JSON");
        let [one, two] = &json["instances"].as_array().expect("a list")[..] else {
            panic!("two instances: {json}");
        };
        assert_eq!((one["id"].as_str(), two["id"].as_str()), (Some("one"), Some("two")));
        assert_eq!(one.get("startedAt"), None, "{json}");
        assert_eq!(two["startedAt"], "1970-01-01T00:00:01Z", "{json}");
        assert_eq!(one["reportedAt"], "1970-01-01T00:00:00Z", "{json}");
        assert_eq!(two["checkP50"], "-5s", "{json}");
    }
}
