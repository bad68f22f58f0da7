//! The Common and the Combined Log Format, as Apache writes them and many others do.
//!
//! **Source:** <https://httpd.apache.org/docs/2.4/logs.html#accesslog>; escapes:
//! <https://httpd.apache.org/docs/2.4/mod/mod_log_config.html#formats>.

use super::KnownFields;
use super::known::{KnownTime, StampForm};
use super::request_line::RequestPart;
use super::template::{Quotes, Template, ValueShape};
use super::text::{DerivedField, Listing, TextFormat};
use crate::traffic::StampedAt;

/// The fields of the Common Log Format, each with the text behind it.
const COMMON: [(&str, ValueShape, &str); 7] = [
    ("host", ValueShape::Word, " "),
    ("ident", ValueShape::Any, " "),
    ("user", ValueShape::Any, " ["),
    ("time", ValueShape::CommonLogTime, "] \""),
    ("request", ValueShape::Any, "\" "),
    ("status", ValueShape::Number, " "),
    ("bytes", ValueShape::Number, ""),
];

/// Other names of fields: Apache's letters, and nginx's variables.
const SYNONYMS: [(&str, &[&str]); 9] = [
    ("host", &["h", "remote_addr"]),
    ("ident", &["l"]),
    ("user", &["u", "remote_user"]),
    ("time", &["t", "time_local"]),
    ("request", &["r"]),
    ("status", &["s"]),
    ("bytes", &["b", "body_bytes_sent"]),
    ("referer", &["http_referer", "referrer"]),
    ("user_agent", &["http_user_agent"]),
];

/// Parts of the request line.
const PARTS: [(&str, RequestPart, Listing); 6] = [
    ("method", RequestPart::Method, Listing::Shown),
    ("uri", RequestPart::Target, Listing::Shown),
    ("protocol", RequestPart::Protocol, Listing::Shown),
    ("request_method", RequestPart::Method, Listing::Hidden),
    ("request_uri", RequestPart::Target, Listing::Hidden),
    ("server_protocol", RequestPart::Protocol, Listing::Hidden),
];

/// Fields of the Combined Log Format behind those of the Common one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Headers {
    None,
    RefererAndUserAgent,
}

/// Field of the virtual host, as Debian's `vhost_combined` has it, before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VirtualHost {
    None,
    First,
}

/// Returns the Common or the Combined Log Format. A line is stamped when its request begins.
pub(super) fn format(headers: Headers, host: VirtualHost) -> TextFormat {
    let mut fields = COMMON.to_vec();
    if headers == Headers::RefererAndUserAgent {
        fields.last_mut().expect("seven fields").2 = " \"";
        fields
            .extend([("referer", ValueShape::Any, "\" \""), ("user_agent", ValueShape::Any, "\"")]);
    }
    if host == VirtualHost::First {
        fields.insert(0, ("vhost", ValueShape::Word, " "));
    }
    build(&fields)
}

fn build(fields: &[(&'static str, ValueShape, &str)]) -> TextFormat {
    let number = |name: &str| fields.iter().position(|field| field.0 == name);
    let shapes: Vec<_> = fields.iter().map(|field| (field.1, field.2.as_bytes())).collect();
    let synonyms = SYNONYMS.iter().flat_map(|(name, synonyms)| {
        let field = number(name);
        synonyms.iter().filter_map(move |name| {
            Some(DerivedField { name, field: field?, part: None, listing: Listing::Hidden })
        })
    });
    let request = number("request").expect("a field of all these formats");
    let parts = PARTS.iter().map(|(name, part, listing)| DerivedField {
        name,
        field: request,
        part: Some(*part),
        listing: *listing,
    });
    TextFormat {
        template: Template::new(b"", &shapes, Quotes::Escaped),
        quotes: Quotes::Escaped,
        names: fields.iter().map(|field| field.0.into()).collect(),
        derived: parts.chain(synonyms).collect(),
        known: KnownFields {
            time: Some(KnownTime { field: "time".to_owned(), form: StampForm::CommonLog }),
            stamped_at: Some(StampedAt::Start),
            duration: None,
            status: Some("status".to_owned()),
        },
    }
}
