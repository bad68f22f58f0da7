//! The cookies: of a session, and of a sign-in that has begun.
//!
//! They have no `Path`: a browser then takes the folder of the page that sets it, which is right below
//! any prefix of a proxy. That of a session has no `Max-Age`: it ends with the browser, and the session
//! ends anyhow.

use axum::http::{HeaderMap, HeaderValue, header};
use rlaas_auth::{RequestKind, RequestOrigin};

const SESSION: &str = "rlaas-console";
const SIGN_IN: &str = "rlaas-console-sign-in";
/// Longest id that is looked for.
const MAX_ID: usize = 64;
/// Longest sealed sign-in that is looked for: browsers keep no longer ones.
const MAX_SEALED: usize = 4096;
/// Most cookies with the name that are looked at: another site of the domain may plant more.
const MAX_COOKIES: usize = 4;

/// Returns the ids of sessions in the cookies of a request. More than one of them is planted.
pub(super) fn session_ids(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    values(headers, SESSION, MAX_ID)
}

/// Returns the sealed sign-ins that have begun.
pub(super) fn begun_sign_ins(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    values(headers, SIGN_IN, MAX_SEALED)
}

/// Returns the header that sets the id of a session.
pub(super) fn set(id: &str, headers: &HeaderMap, origin: RequestOrigin) -> HeaderValue {
    cookie(SESSION, id, "", headers, origin)
}

/// Returns the header that removes the id of a session.
pub(super) fn remove(headers: &HeaderMap, origin: RequestOrigin) -> HeaderValue {
    cookie(SESSION, "", "; Max-Age=0", headers, origin)
}

/// Returns the header that keeps a sign-in that has begun, for 10 minutes.
pub(super) fn set_begun(sealed: &str, headers: &HeaderMap, origin: RequestOrigin) -> HeaderValue {
    cookie(SIGN_IN, sealed, "; Max-Age=600", headers, origin)
}

/// Returns the header that removes a sign-in that has ended.
pub(super) fn remove_begun(headers: &HeaderMap, origin: RequestOrigin) -> HeaderValue {
    cookie(SIGN_IN, "", "; Max-Age=0", headers, origin)
}

fn values<'a>(
    headers: &'a HeaderMap,
    wanted: &'static str,
    longest: usize,
) -> impl Iterator<Item = &'a str> {
    let texts = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let cookies = texts.flat_map(|cookies| cookies.split(';'));
    let values = cookies.filter_map(move |cookie| {
        let (name, value) = cookie.split_once('=')?;
        (name.trim() == wanted && (1..=longest).contains(&value.len())).then_some(value.trim())
    });
    values.take(MAX_COOKIES)
}

fn cookie(
    name: &str,
    value: &str,
    end: &str,
    headers: &HeaderMap,
    origin: RequestOrigin,
) -> HeaderValue {
    let secure = if is_encrypted(headers, origin) { "; Secure" } else { "" };
    let cookie = format!("{name}={value}; HttpOnly; SameSite=Lax{secure}{end}");
    HeaderValue::try_from(cookie).expect("a value has visible characters only")
}

/// Returns `true` if the browser uses TLS, to this server or to a proxy before it. Whoever forges the
/// header of the proxy does so for their own browser alone.
fn is_encrypted(headers: &HeaderMap, origin: RequestOrigin) -> bool {
    let by_proxy = headers.get("x-forwarded-proto");
    origin.kind == RequestKind::Https
        || by_proxy.is_some_and(|scheme| scheme.as_bytes().eq_ignore_ascii_case(b"https"))
}
