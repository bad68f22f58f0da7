use rlaas_telemetry::labels::AUTH_REFUSALS;

use super::*;
use crate::{KeyRefusal, MalformedApiKey, ProjectId};

const REMOTE: RequestOrigin = RequestOrigin { kind: RequestKind::Grpc, peer: PeerLocality::Remote };
const LOOPBACK: RequestOrigin =
    RequestOrigin { kind: RequestKind::Grpc, peer: PeerLocality::Loopback };

fn auth() -> Auth {
    let token = |name: &str, text: &str, role| TokenEntry {
        name: name.into(),
        sha256: TokenHash::from_token(text.as_bytes()),
        roles: Roles::only(role).into(),
    };
    let settings = AuthSettings {
        tokens: vec![
            token("shop", "one", Role::Check),
            token("ops", "two", Role::Admin),
            token("desk", "three", Role::Operate),
        ],
        clients: HashMap::from([("spiffe://a/b".to_owned(), Roles::ALL.into())]),
        oidc: None,
    };
    Auth::new(settings, Arc::default())
}

fn with_token(header: &str) -> Request<()> {
    let request = Request::builder().header("authorization", header);
    request.header("content-type", "application/grpc").body(()).expect("a request")
}

fn named(names: &[&str]) -> Request<()> {
    let mut request = with_token("Bearer wrong");
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    request.extensions_mut().insert(ClientCertificate::Verified(names));
    request
}

/// Returns the caller of an administrative call.
fn caller(
    auth: &Auth,
    request: &Request<()>,
    permission: Permission,
    origin: RequestOrigin,
) -> Result<Option<Caller>, AuthError> {
    auth.admit(request, Requirement { permission, origin }).map(|admission| admission.caller)
}

fn admit(auth: &Auth, request: &Request<()>, permission: Permission) -> Result<(), AuthError> {
    auth.admit(request, Requirement { permission, origin: REMOTE }).map(|_| ())
}

#[test]
fn token_has_its_roles_and_no_others() {
    let auth = auth();
    for header in ["Bearer one", "bearer one", "BEARER  one "] {
        assert_eq!(admit(&auth, &with_token(header), Permission::Decisions), Ok(()), "{header}");
    }
    let forbidden = |permission: Permission| Err(AuthError::Forbidden(permission.roles()));
    for (token, granted) in [
        ("one", &[Permission::Decisions][..]),
        ("two", &[Permission::Configuration, Permission::ADMIN, Permission::OPERATE_OR_ADMIN]),
        ("three", &[Permission::Configuration, Permission::OPERATE, Permission::OPERATE_OR_ADMIN]),
    ] {
        let request = with_token(&format!("Bearer {token}"));
        for permission in [
            Permission::Decisions,
            Permission::Configuration,
            Permission::OPERATE,
            Permission::ADMIN,
            Permission::OPERATE_OR_ADMIN,
        ] {
            let expected =
                if granted.contains(&permission) { Ok(()) } else { forbidden(permission) };
            assert_eq!(admit(&auth, &request, permission), expected, "{token} {permission:?}");
        }
    }
    for header in ["Bearer", "Bearer ", "Bearer on", "Bearer onee", "Basic one", "one", ""] {
        let refused = admit(&auth, &with_token(header), Permission::Decisions);
        assert_eq!(refused, Err(AuthError::Unauthenticated), "{header}");
    }
    let refused = admit(&auth, &Request::new(()), Permission::Decisions);
    assert_eq!(refused, Err(AuthError::Unauthenticated));
}

#[test]
fn certificate_is_known_by_any_of_its_names() {
    let auth = auth();
    assert_eq!(admit(&auth, &named(&["h", "spiffe://a/b"]), Permission::ADMIN), Ok(()));
    for names in [&[][..], &["h"], &["spiffe://a/B"], &["spiffe://a/b/c"]] {
        let refused = admit(&auth, &named(names), Permission::Decisions);
        assert_eq!(refused, Err(AuthError::Unauthenticated), "{names:?}");
    }
}

#[test]
fn caller_is_named_by_its_token_or_its_certificate() {
    let caller_of = |request: &Request<()>| {
        let admitted = caller(&auth(), request, Permission::OPERATE_OR_ADMIN, REMOTE);
        admitted.expect("a known caller").expect("an administrative call")
    };
    let ops = caller_of(&with_token("Bearer two"));
    assert_eq!(
        (ops.actor(), ops.has(Role::Admin), ops.has(Role::Operate)),
        ("token:ops", true, false)
    );
    assert_eq!(caller_of(&named(&["h", "spiffe://a/b"])).actor(), "certificate:spiffe://a/b");
    let mut both = with_token("Bearer two");
    both.extensions_mut().extend(named(&["spiffe://a/b"]).extensions().clone());
    let both = caller_of(&both);
    assert_eq!((both.actor(), both.has(Role::Operate)), ("token:ops", true));
    // Decisions and the configuration name no caller.
    let admitted = caller(&auth(), &with_token("Bearer two"), Permission::Configuration, REMOTE);
    assert_eq!(admitted, Ok(None));
}

#[test]
fn roles_for_some_projects_are_for_calls_about_projects_alone() {
    let id = |text: &str| text.parse::<ProjectId>().expect("an id");
    let entry = TokenEntry {
        name: "team".into(),
        sha256: TokenHash::from_token(b"four"),
        roles: Grants::within([id("shop")], Roles::only(Role::Admin)),
    };
    let settings = AuthSettings { tokens: vec![entry], ..AuthSettings::default() };
    let auth = Auth::new(settings, Arc::default());
    let request = with_token("Bearer four");
    for permission in [Permission::PROJECT_ADMIN, Permission::PROJECT_OPERATE_OR_ADMIN] {
        let team = caller(&auth, &request, permission, REMOTE).expect("a known caller");
        let team = team.expect("an administrative call");
        assert!(!team.has(Role::Admin));
        assert_eq!(team.roles_in(&id("shop")), Roles::only(Role::Admin));
        assert_eq!(team.roles_in(&id("blog")), Roles::default());
    }
    let operate = Permission::Projects(Roles::only(Role::Operate));
    for permission in [operate, Permission::ADMIN, Permission::OPERATE_OR_ADMIN] {
        let refused = admit(&auth, &request, permission);
        assert_eq!(refused, Err(AuthError::Forbidden(permission.roles())), "{permission:?}");
    }
    let refused = admit(&auth, &request, Permission::Configuration);
    assert_eq!(refused, Err(AuthError::Forbidden(Permission::Configuration.roles())));
}

#[test]
fn listed_callers_need_not_be_local_and_others_may_not_be() {
    let mut local = Request::new(());
    local.headers_mut().insert("host", "localhost".parse().expect("a value"));
    for permission in [Permission::OPERATE, Permission::ADMIN, Permission::Configuration] {
        let refused = caller(&auth(), &local, permission, LOOPBACK);
        assert_eq!(refused, Err(AuthError::Unauthenticated), "{permission:?}");
    }
    let mut proxied = with_token("Bearer three");
    proxied.headers_mut().insert("x-forwarded-for", "10.0.0.1".parse().expect("a value"));
    assert_eq!(admit(&auth(), &proxied, Permission::OPERATE), Ok(()));
}

#[test]
fn without_listed_callers_only_local_ones_administer() {
    let open = Auth::unlisted(HostNames::default(), Arc::default());
    let mut request = Request::new(());
    for (name, value) in [("host", "localhost"), ("content-type", "application/grpc")] {
        request.headers_mut().insert(name, value.parse().expect("a value"));
    }
    for permission in [Permission::Decisions, Permission::Configuration] {
        assert_eq!(caller(&open, &request, permission, REMOTE), Ok(None), "{permission:?}");
    }
    for permission in [Permission::OPERATE, Permission::ADMIN, Permission::OPERATE_OR_ADMIN] {
        let refused = caller(&open, &request, permission, REMOTE);
        assert_eq!(refused, Err(AuthError::NotLocal(permission.roles(), NotLocal::Remote)));
        let text = refused.expect_err("a refusal").to_string();
        assert!(text.contains("auth") && text.contains(&permission.roles().to_string()), "{text}");
        for peer in [PeerLocality::Loopback, PeerLocality::UnixSocket] {
            let local = caller(&open, &request, permission, RequestOrigin { peer, ..REMOTE });
            let local = local.expect("a local call").expect("an administrative call");
            let roles = Role::ALL.map(|role| local.has(role));
            assert_eq!((local.actor(), roles), ("local", [true; 4]));
        }
    }
    // A certificate is required where one is asked for, and names the caller; it makes nobody local.
    let certified = |certificate| {
        let mut request = request.clone();
        request.extensions_mut().insert(certificate);
        request
    };
    let names = Arc::from(["shop.example".to_owned()]);
    let verified = certified(ClientCertificate::Verified(names));
    assert_eq!(caller(&open, &verified, Permission::Decisions, REMOTE), Ok(None));
    let roles = Permission::ADMIN.roles();
    let refused = caller(&open, &verified, Permission::ADMIN, REMOTE);
    assert_eq!(refused, Err(AuthError::NotLocal(roles, NotLocal::Remote)));
    let local = caller(&open, &verified, Permission::ADMIN, LOOPBACK).expect("a local call");
    assert_eq!(local.as_ref().map(Caller::actor), Some("certificate:shop.example"));
    let missing = certified(ClientCertificate::Missing);
    assert_eq!(
        caller(&open, &missing, Permission::ADMIN, LOOPBACK),
        Err(AuthError::Unauthenticated)
    );
}

#[test]
fn missing_certificate_is_refused_even_with_a_token() {
    let open = Auth::unlisted(HostNames::default(), Arc::default());
    for (auth, header) in [(auth(), "Bearer one"), (open, "")] {
        let mut request = with_token(header);
        assert_eq!(admit(&auth, &request, Permission::Decisions), Ok(()));
        request.extensions_mut().insert(ClientCertificate::Missing);
        let refused = admit(&auth, &request, Permission::Decisions);
        assert_eq!(refused, Err(AuthError::Unauthenticated));
    }
}

#[test]
fn replaced_settings_are_in_force() {
    let auth = auth();
    auth.replace(AuthSettings::default());
    let one = with_token("Bearer one");
    assert_eq!(admit(&auth, &one, Permission::Decisions), Err(AuthError::Unauthenticated));
    // A list that was emptied lets nobody in, local or not.
    let refused = caller(&auth, &with_token("Bearer two"), Permission::ADMIN, LOOPBACK);
    assert_eq!(refused, Err(AuthError::Unauthenticated));
}

#[test]
fn certificate_that_is_enough_stands_beside_an_invalid_token() {
    let oidc = OidcSettings {
        issuer: "http://127.0.0.1:1".parse().expect("an issuer"),
        audiences: vec!["a".to_owned()],
        algorithms: TokenAlgorithm::ALL.to_vec(),
        trust: IssuerTrust::none(),
        roles_claim: ClaimPath::default(),
        projects_claim: None,
        console: None,
    };
    let clients = HashMap::from([("h".to_owned(), Roles::only(Role::Check).into())]);
    let settings = AuthSettings { tokens: Vec::new(), clients, oidc: Some(oidc) };
    let auth = Auth::new(settings, Arc::default());
    // {"alg":"EdDSA","kid":"a"}
    let signed = "Bearer eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.e30.AA";
    for (header, error) in [
        (signed, AuthError::Token(TokenError::KeysUnavailable)),
        ("Bearer a.b.c", AuthError::Token(TokenError::Malformed)),
        ("Bearer opaque", AuthError::Unauthenticated),
    ] {
        let mut request = with_token(header);
        assert_eq!(admit(&auth, &request, Permission::Decisions), Err(error), "{header}");
        request.extensions_mut().extend(named(&["h"]).extensions().clone());
        assert_eq!(admit(&auth, &request, Permission::Decisions), Ok(()), "{header}");
        // The certificate is known, and an unknown opaque token is as good as none.
        let refused = admit(&auth, &request, Permission::OPERATE);
        let is_opaque = error == AuthError::Unauthenticated;
        let expected =
            if is_opaque { AuthError::Forbidden(Permission::OPERATE.roles()) } else { error };
        assert_eq!(refused, Err(expected), "{header}");
    }
}

#[test]
fn metrics_have_every_reason() {
    let of_keys = [
        ApiKeyRefusal::Missing,
        ApiKeyRefusal::Disagree,
        KeyRefusal::Malformed(MalformedApiKey::Form).into(),
        KeyRefusal::Malformed(MalformedApiKey::Checksum).into(),
        KeyRefusal::Unknown.into(),
        KeyRefusal::Expired.into(),
        KeyRefusal::Revoked.into(),
        KeyRefusal::Unavailable.into(),
    ];
    let refusals = [AuthError::Unauthenticated, AuthError::Forbidden(Roles::ALL)].into_iter();
    let refusals = refusals.chain(of_keys.map(AuthError::ApiKey));
    let refusals = refusals.chain(TokenError::ALL.map(AuthError::Token));
    let reasons: Vec<&str> = refusals.map(AuthError::reason).collect();
    assert_eq!(reasons, AUTH_REFUSALS);
    let roles = Roles::only(Role::Admin);
    for refusal in [AuthError::NotLocal(roles, NotLocal::Host), WebError::Origin.into()] {
        assert!(AUTH_REFUSALS.contains(&refusal.reason()), "{refusal}");
    }
}
