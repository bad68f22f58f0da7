//! The size of what a management server has sent, found in its bytes before anything is made of them.
//!
//! Memory is taken by messages, such as descriptors and values of metadata, and by texts: the label of a limit has
//! the keys and values of all descriptors above it. So both are counted, and single texts are bounded.
//!
//! **Source:** <https://protobuf.dev/programming-guides/encoding/>.

use prost::decode_length_delimiter;
use prost_reflect::{Kind, MessageDescriptor};

/// Longest name, domain, key or value, in bytes.
const MAX_TEXT: usize = 1024;
/// Longest metadata of a descriptor, in bytes.
const MAX_METADATA: usize = 64 * 1024;
/// Bytes that a message counts as, without its texts.
const MESSAGE_BYTES: usize = 128;

/// Most levels of messages: more than valid resources have, and few enough for recursion.
pub(super) const MAX_LEVELS: usize = 100;

/// The number of descriptors in a message, at all levels, and its size: the bytes of the messages in it with their
/// texts, where those of a descriptor count again for each one below it.
type Scanned = Result<(usize, usize), String>;

/// Returns the number of descriptors in a message, and its size.
///
/// # Errors
///
/// The bytes are not of the type, there are more levels, or a text or metadata is too long.
pub(super) fn scan(
    mut message: &[u8],
    message_type: &MessageDescriptor,
    levels_left: usize,
) -> Scanned {
    let unreadable = || format!("can't be read, or has more than {MAX_LEVELS} levels");
    let levels_left = levels_left.checked_sub(1).ok_or_else(unreadable)?;
    let (mut descriptors, mut size, mut text_bytes) = (0, MESSAGE_BYTES, 0);
    while !message.is_empty() {
        let (tag, value) = next_field(&mut message).ok_or_else(unreadable)?;
        let field = u32::try_from(tag >> 3).ok().and_then(|number| message_type.get_field(number));
        let Some(field) = field.filter(|_| tag & 7 == 2) else { continue };
        let (name, length) = (field.name(), value.len());
        let most = match (name, field.kind()) {
            ("metadata", _) => MAX_METADATA,
            (_, Kind::String) if message_type.package_name() != "google.protobuf" => MAX_TEXT,
            _ => usize::MAX,
        };
        if length > most {
            return Err(format!("{name} of {length} bytes: must be at most {most} bytes"));
        }
        if let Kind::Message(below) = field.kind() {
            let (count, bytes) = scan(value, &below, levels_left)?;
            descriptors += count + usize::from(name == "descriptors");
            size += bytes;
        } else {
            text_bytes += length;
        }
    }
    Ok((descriptors, size + text_bytes * (descriptors + 1)))
}

/// Returns the tag and the bytes of the next field, without its length. `None` if there is none.
fn next_field<'a>(message: &mut &'a [u8]) -> Option<(usize, &'a [u8])> {
    let tag = decode_length_delimiter(&mut *message).ok()?;
    let length = match tag & 7 {
        0 => decode_length_delimiter(&mut *message).map(|_number| 0).ok()?,
        1 => 8,
        2 => decode_length_delimiter(&mut *message).ok()?,
        5 => 4,
        _ => return None,
    };
    let (value, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some((tag, value))
}
