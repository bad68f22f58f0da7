//! The cookie of a session.
//!
//! It has no `Path`: a browser then takes the folder of the page that sets it, which is right below
//! any prefix of a proxy. It has no `Max-Age`: it ends with the browser, and the session ends anyhow.

use axum::http::{HeaderMap, HeaderValue, header};

use super::RequestOrigin;
use crate::api::auth::RequestKind;

const NAME: &str = "rlaas-console";
/// Longest id that is looked for.
const MAX_ID: usize = 64;
/// Most cookies with the name that are looked at: another site of the domain may plant more.
const MAX_IDS: usize = 4;

/// Returns the ids of sessions in the cookies of a request. More than one of them is planted.
pub(super) fn session_ids(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let texts = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let cookies = texts.flat_map(|cookies| cookies.split(';'));
    let ids = cookies.filter_map(|cookie| {
        let (name, id) = cookie.split_once('=')?;
        (name.trim() == NAME && (1..=MAX_ID).contains(&id.len())).then_some(id.trim())
    });
    ids.take(MAX_IDS)
}

/// Returns the header that sets the id of a session.
pub(super) fn set(id: &str, headers: &HeaderMap, origin: RequestOrigin) -> HeaderValue {
    cookie(id, "", headers, origin)
}

/// Returns the header that removes the id of a session.
pub(super) fn remove(headers: &HeaderMap, origin: RequestOrigin) -> HeaderValue {
    cookie("", "; Max-Age=0", headers, origin)
}

fn cookie(id: &str, end: &str, headers: &HeaderMap, origin: RequestOrigin) -> HeaderValue {
    let secure = if is_encrypted(headers, origin) { "; Secure" } else { "" };
    let cookie = format!("{NAME}={id}; HttpOnly; SameSite=Lax{secure}{end}");
    HeaderValue::try_from(cookie).expect("an id has visible characters only")
}

/// Returns `true` if the browser uses TLS, to this server or to a proxy before it. Whoever forges the
/// header of the proxy does so for their own browser alone.
fn is_encrypted(headers: &HeaderMap, origin: RequestOrigin) -> bool {
    let by_proxy = headers.get("x-forwarded-proto");
    origin.kind == RequestKind::Https
        || by_proxy.is_some_and(|scheme| scheme.as_bytes().eq_ignore_ascii_case(b"https"))
}
