//! The section `auth.oidc.console`: the console as a client of the issuer, where its visitors sign in.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use figment::value::Value;
use rlaas_auth::{ClientSecret, ConsoleClient};

use super::section::Section;
use super::setting::Setting;
use super::values::{self, Invalid, Read};
use super::watch::FileSnapshot;

/// Maximum number of scopes, and of bytes of one.
const MAX_SCOPES: usize = 20;
const MAX_SCOPE: usize = 100;

const CONSOLE: Setting = Setting::new(
    "console",
    "The console as a client of the issuer: visitors sign in there (authorization code flow with \
     PKCE), and have the roles of their ID token, issued for client-id. Requires server.console.",
);
const CLIENT_ID: Setting =
    Setting::new("client-id", "Id of the client, as the issuer has registered it.")
        .example("rlaas-console");
const CLIENT_SECRET_FILE: Setting = Setting::new(
    "client-secret-file",
    "File with the secret of the client, without which it is a public one. Reloaded when it changes.",
)
.example("/etc/rlaas/client-secret");
const REDIRECT_URI: Setting = Setting::new(
    "redirect-uri",
    "Address to which the issuer sends browsers back, as it is registered there: that of the console \
     as browsers see it, also behind a proxy, with /console/oidc-callback.",
)
.example("https://ops.example/console/oidc-callback");
const SCOPES: Setting = Setting::new(
    "scopes",
    "Scopes that are requested; openid must be among them. Default: openid.",
)
.example("[openid, groups]");

/// Reads the section. Also returns a snapshot of the file of the secret, taken before it was read.
pub(super) fn read(oidc: &mut Section<'_>) -> (Option<ConsoleClient>, Option<FileSnapshot>) {
    let mut section = oidc.section(CONSOLE);
    if !section.is_given() {
        return (None, None);
    }
    let client_id = section.required(CLIENT_ID, values::text);
    let file = section.optional(CLIENT_SECRET_FILE, values::path);
    let snapshot = file.as_deref().map(FileSnapshot::take);
    let client_secret = file.and_then(|file| {
        let secret = secret_in(&file);
        secret.map_err(|invalid| section.refuse(CLIENT_SECRET_FILE.key, invalid)).ok()
    });
    let redirect_uri = section.required(REDIRECT_URI, values::parsed);
    let scopes = section.optional(SCOPES, scopes);
    section.close();
    let client = client_id.zip(redirect_uri).map(|(client_id, redirect_uri)| ConsoleClient {
        client_id,
        client_secret,
        redirect_uri,
        scopes: scopes.unwrap_or_else(|| vec!["openid".to_owned()]),
    });
    (client, snapshot)
}

/// Reads the secret in a file, without white space at its end.
fn secret_in(file: &Path) -> Result<ClientSecret, Invalid> {
    let mut text = String::new();
    // More than fits, to tell a secret that is too long.
    let most = ClientSecret::MAX as u64 + 100;
    let read = File::open(file).and_then(|file| file.take(most).read_to_string(&mut text));
    read.map_err(|_| Invalid::new("must be the path of a file that can be read"))?;
    ClientSecret::new(text.trim_end())
        .ok_or(Invalid::new("must be a file with one line of 1 to 1024 visible ASCII characters"))
}

fn scopes(value: &Value) -> Read<Vec<String>> {
    const VALID: &str = "must be a list of at most 20 scopes, openid among them";
    let texts = values::listed(value).map_err(|_| Invalid::new(VALID))?;
    let is_scope = |text: &String| {
        (1..=MAX_SCOPE).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let is_valid = texts.len() <= MAX_SCOPES
        && texts.iter().all(is_scope)
        && texts.iter().any(|text| text == "openid");
    let shown = format!("[{}]", texts.join(", "));
    if is_valid { Ok((texts, shown)) } else { Err(Invalid::new(VALID)) }
}
