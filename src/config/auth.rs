//! Who may call what: `auth`.

use std::borrow::Cow;
use std::collections::HashSet;

use figment::value::Value;

use super::section::Section;
use super::values::{self, Invalid, Read};
use crate::api::auth::{AuthSettings, Role, Roles, Token, TokenHash};

/// Most tokens: each is compared with that of every call.
const MOST_TOKENS: usize = 1_000;

pub(super) fn read(root: &mut Section<'_>) -> AuthSettings {
    let mut section = root.section("auth");
    let tokens = tokens(&mut section);
    section.close();
    AuthSettings { tokens, ..AuthSettings::default() }
}

fn tokens(auth: &mut Section<'_>) -> Vec<Token> {
    let sections = auth.list("tokens");
    if sections.len() > MOST_TOKENS {
        auth.refuse("tokens", Invalid(Cow::Owned(format!("valid is up to {MOST_TOKENS} of them"))));
    }
    let mut taken = HashSet::new();
    let tokens = sections.into_iter().filter_map(|section| token(section, &mut taken));
    tokens.collect()
}

fn token(mut section: Section<'_>, taken: &mut HashSet<String>) -> Option<Token> {
    let name = section.required("name", values::text);
    if name.is_some_and(|name| !taken.insert(name)) {
        section.refuse("name", Invalid::new("another token has this name"));
    }
    let sha256 = section.required("sha256", hash);
    let roles = section.required("roles", roles);
    section.close();
    Some(Token { sha256: sha256?, roles: roles? })
}

fn hash(value: &Value) -> Read<TokenHash> {
    // A number is no text; it would be refused for its length anyway.
    let hash = value.as_str().unwrap_or_default().parse()?;
    Ok((hash, "***".to_owned()))
}

fn roles(value: &Value) -> Read<Roles> {
    let invalid = || Invalid::new("valid is a list of check and admin");
    let texts = values::texts(value).map_err(|_| invalid())?;
    let role = |text: &String| Role::ALL.into_iter().find(|role| role.name() == text);
    let roles: Option<Roles> = texts.iter().map(role).collect();
    Ok((roles.ok_or_else(invalid)?, format!("[{}]", texts.join(", "))))
}
