//! The section `auth.oidc`: the issuer whose tokens grant roles; the console as its client is in
//! `oidc_console`.

use std::path::Path;

use figment::value::Value;
use rlaas_auth::{ClaimPath, Issuer, IssuerTrust, OidcSettings, TokenAlgorithm};

use super::oidc_console;
use super::section::Section;
use super::setting::Setting;
use super::values::{self, Invalid, PEM_FILE, Read, pem_path, read_pem};
use super::watch::FileSnapshot;
use super::yaml;

/// Maximum number of audiences.
const MAX_AUDIENCES: usize = 100;

const OIDC: Setting = Setting::new(
    "oidc",
    "Issuer of bearer tokens (OpenID Connect): signed tokens of it grant the roles that they name, \
     beside tokens and clients. Changes apply without a restart, but enabling auth needs one.",
);
const ISSUER: Setting = Setting::new(
    "issuer",
    "URL of the issuer, exactly as in the claim iss: https, or http on loopback. Keys come from its \
     discovery document, /.well-known/openid-configuration.",
)
.example("https://id.example/realms/main");
const AUDIENCE: Setting = Setting::new(
    "audience",
    "Audience for which tokens must be issued (claim aud); several as a list.",
)
.example("rlaas");
const ALGORITHMS: Setting = Setting::new(
    "algorithms",
    "Algorithms by which tokens may be signed. Default: RS256, ES256 and EdDSA.",
)
.example("[ES256]");
const CA: Setting = Setting::new(
    "ca",
    "PEM file of authorities for the certificate of the issuer, in place of those of the system. \
     Reloaded when it changes.",
)
.example("/etc/rlaas/issuer-ca.crt");
const ROLES_CLAIM: Setting = Setting::new(
    "roles-claim",
    "Claim with the list of roles: check, operate, admin, metrics; others are ignored. Dots lead into \
     objects; as a list the names may contain dots. Default: roles.",
)
.example("realm_access.roles");

const PROJECTS_CLAIM: Setting = Setting::new(
    "projects-claim",
    "Claim with the list of ids of projects for which the roles are; * is all. A token without it \
     has no role. Default: roles are for all projects.",
)
.example("projects");

/// Reads the section. Also returns snapshots of the files that it names, taken before they were read.
pub(super) fn read(auth: &mut Section<'_>) -> (Option<OidcSettings>, Vec<FileSnapshot>) {
    let mut section = auth.section(OIDC);
    if !section.is_given() {
        return (None, Vec::new());
    }
    let issuer = section.required(ISSUER, issuer);
    let audiences = section.required(AUDIENCE, audiences);
    let algorithms = section.optional(ALGORITHMS, algorithms);
    let ca = section.optional(CA, pem_path);
    let mut files: Vec<FileSnapshot> = ca.as_deref().map(FileSnapshot::take).into_iter().collect();
    let roles_claim = section.optional(ROLES_CLAIM, claim_path);
    let projects_claim = section.optional(PROJECTS_CLAIM, claim_path);
    let (console, secret_file) = oidc_console::read(&mut section);
    files.extend(secret_file);
    let trust = issuer.as_ref().and_then(|issuer| trust(&section, issuer, ca.as_deref()));
    section.close();
    let parts = issuer.zip(audiences).zip(trust);
    let settings = parts.map(|((issuer, audiences), trust)| OidcSettings {
        issuer,
        audiences,
        algorithms: algorithms.unwrap_or_else(|| TokenAlgorithm::ALL.to_vec()),
        trust,
        roles_claim: roles_claim.unwrap_or_default(),
        projects_claim,
        console,
    });
    (settings, files)
}

fn trust(section: &Section<'_>, issuer: &Issuer, ca: Option<&Path>) -> Option<IssuerTrust> {
    let loaded = match ca {
        None if section.has(CA.key) => return None,
        None if issuer.is_https() => IssuerTrust::of_system().map_err(Invalid::from),
        None => Ok(IssuerTrust::none()),
        Some(_) if !issuer.is_https() => Err(Invalid::new("requires an https issuer")),
        Some(ca) => {
            read_pem(ca).map_err(|_| PEM_FILE).and_then(|pem| Ok(IssuerTrust::from_pem(&pem)?))
        }
    };
    loaded.map_err(|invalid| section.refuse(CA.key, invalid)).ok()
}

fn issuer(value: &Value) -> Read<Issuer> {
    let issuer: Issuer = value.as_str().unwrap_or_default().parse()?;
    let shown = issuer.name().to_owned();
    Ok((issuer, shown))
}

fn audiences(value: &Value) -> Read<Vec<String>> {
    let texts = values::texts(value)?;
    let is_valid = texts.len() <= MAX_AUDIENCES && !texts.iter().any(String::is_empty);
    if !is_valid {
        return Err(Invalid::new("must be a string or a list of 1 to 100 strings"));
    }
    let shown = shown(value, &texts);
    Ok((texts, shown))
}

fn algorithms(value: &Value) -> Read<Vec<TokenAlgorithm>> {
    let invalid = || Invalid::new("must be a list of RS256, ES256 and EdDSA");
    let texts = values::listed(value).map_err(|_| invalid())?;
    let algorithms: Option<Vec<TokenAlgorithm>> =
        texts.iter().map(|name| TokenAlgorithm::from_name(name)).collect();
    let algorithms = algorithms.filter(|all| !all.is_empty()).ok_or_else(invalid)?;
    Ok((algorithms, format!("[{}]", texts.join(", "))))
}

/// Reads the path of a claim: a string with dots between the names, or a list of names.
fn claim_path(value: &Value) -> Read<ClaimPath> {
    let invalid = || Invalid::new("must be the name of a claim, or a list of at most 8 names");
    let texts = values::texts(value).map_err(|_| invalid())?;
    let names = match value.as_str() {
        Some(text) => text.split('.').map(str::to_owned).collect(),
        None => texts.clone(),
    };
    let shown = shown(value, &texts);
    ClaimPath::new(names).map(|path| (path, shown)).ok_or_else(invalid)
}

/// Returns a string as it is, and a list of strings as YAML.
fn shown(value: &Value, texts: &[String]) -> String {
    value.as_str().map_or_else(|| yaml::list(texts), str::to_owned)
}
