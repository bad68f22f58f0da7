//! Certificates of every kind that TLS meets, made anew by `openssl`: none can expire unnoticed.

use std::path::PathBuf;
use std::process::Command;

use crate::TempDir;
use crate::redis::{RedisServer, owned};

const CONFIGURATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/openssl.conf");

/// Whose certificate it is, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// For `localhost` and 127.0.0.1, by the authority that is trusted.
    Server,
    /// As [`Certificate::Server`], another one.
    Renewed,
    /// For a client that is called `shop.example` and `spiffe://example/shop`, by the same
    /// authority.
    Client,
    /// As [`Certificate::Client`], but by an authority that nobody trusts.
    ForeignClient,
    /// As [`Certificate::Server`], but its time is over.
    Expired,
    /// As [`Certificate::Server`], but by an authority that nobody trusts.
    Foreign,
    /// By the right authority, for another name and address.
    WrongHost,
    /// As [`Certificate::Server`], but by itself.
    SelfSigned,
    /// As [`Certificate::SelfSigned`], but its time is over.
    ExpiredSelfSigned,
    /// As [`Certificate::SelfSigned`], for another name and address.
    WrongHostSelfSigned,
}

/// Whether a server wants to see certificates of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Refuses clients without one.
    Required,
    /// Does not ask for one.
    Ignored,
}

/// An authority and what it has signed; removed when it is dropped.
#[derive(Debug)]
pub struct Certificates(TempDir);

impl Certificates {
    /// Makes an authority and a certificate of each kind.
    ///
    /// # Panics
    ///
    /// If there is no openssl.
    pub fn make() -> Self {
        let certificates = Self(TempDir::new());
        certificates.0.write("signed", "");
        certificates.create_authority("authority");
        certificates.create_authority("foreign-authority");
        for certificate in [
            Certificate::Server,
            Certificate::Renewed,
            Certificate::Client,
            Certificate::ForeignClient,
            Certificate::Expired,
            Certificate::Foreign,
            Certificate::WrongHost,
            Certificate::SelfSigned,
            Certificate::ExpiredSelfSigned,
            Certificate::WrongHostSelfSigned,
        ] {
            certificates.issue(certificate);
        }
        certificates
    }

    /// The certificate of the authority that is trusted, in PEM.
    pub fn authority(&self) -> PathBuf {
        self.0.path("authority.crt")
    }

    /// A certificate, in PEM.
    pub fn certificate(&self, certificate: Certificate) -> PathBuf {
        self.0.path(&format!("{}.crt", certificate.name()))
    }

    /// The key of a certificate, in PEM (PKCS #8).
    pub fn key(&self, certificate: Certificate) -> PathBuf {
        self.0.path(&format!("{}.key", certificate.name()))
    }

    /// Starts a redis-server that shows this certificate and listens with TLS alone.
    pub fn serve(&self, certificate: Certificate, clients: ClientCertificates) -> RedisServer {
        RedisServer::start_tls(&self.arguments(certificate, clients))
    }

    /// What [`RedisServer::start_tls`] wants to show this certificate.
    pub fn arguments(&self, certificate: Certificate, clients: ClientCertificates) -> Vec<String> {
        let clients = match clients {
            ClientCertificates::Required => "yes",
            ClientCertificates::Ignored => "no",
        };
        let files = [self.authority(), self.certificate(certificate), self.key(certificate)];
        let [authority, certificate, key] = files.map(|file| file.display().to_string());
        owned(&[
            "--tls-ca-cert-file",
            &authority,
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-auth-clients",
            clients,
        ])
    }

    /// Makes an authority that signs itself.
    fn create_authority(&self, name: &str) {
        let extensions = ["-x509", "-days", "3650", "-extensions", "authority"];
        self.request(name, &format!("{name}.crt"), &extensions);
    }

    fn issue(&self, certificate: Certificate) {
        let name = certificate.name();
        let request = format!("{name}.csr");
        self.request(name, &request, &[]);
        let own = ["-selfsign".to_owned()];
        let by = |authority: &str| ["-cert".to_owned(), format!("{authority}.crt")];
        let (signer, signs): (&str, Vec<String>) = match certificate {
            Certificate::Foreign | Certificate::ForeignClient => {
                ("foreign-authority", by("foreign-authority").into())
            }
            Certificate::SelfSigned
            | Certificate::ExpiredSelfSigned
            | Certificate::WrongHostSelfSigned => (name, own.into()),
            _ => ("authority", by("authority").into()),
        };
        let signs: Vec<&str> = signs.iter().map(String::as_str).collect();
        let end = match certificate {
            Certificate::Expired | Certificate::ExpiredSelfSigned => "20200102000000Z",
            _ => "20491231000000Z",
        };
        let key = format!("{signer}.key");
        let always = ["ca", "-batch", "-notext", "-create_serial", "-config", CONFIGURATION];
        let more = [
            "-keyfile",
            &key,
            "-extensions",
            certificate.extensions(),
            "-startdate",
            "20200101000000Z",
            "-enddate",
            end,
            "-in",
            &request,
            "-out",
            &format!("{name}.crt"),
        ];
        self.openssl(&[&always[..], &signs, &more].concat());
    }

    /// Makes a key, and what is signed by it: a request, or a certificate with `-x509`.
    fn request(&self, name: &str, signed: &str, more: &[&str]) {
        let (subject, key) = (format!("/CN={name}"), format!("{name}.key"));
        let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"];
        let files = ["-config", CONFIGURATION, "-keyout", &key, "-out", signed];
        self.openssl(&[&["req", "-subj", &subject], &new_key[..], &files, more].concat());
    }

    fn openssl(&self, arguments: &[&str]) {
        let output = Command::new("openssl")
            .args(arguments)
            .current_dir(self.0.path("."))
            .output()
            .expect("no openssl: apt-get install openssl, or run tests/run.sh");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments:?}: {error}");
    }
}

impl Certificate {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Renewed => "renewed",
            Self::Client => "client",
            Self::ForeignClient => "foreign-client",
            Self::Expired => "expired",
            Self::Foreign => "foreign",
            Self::WrongHost => "wrong-host",
            Self::SelfSigned => "self-signed",
            Self::ExpiredSelfSigned => "expired-self-signed",
            Self::WrongHostSelfSigned => "wrong-host-self-signed",
        }
    }

    /// The section of `openssl.conf` that says what it is for.
    fn extensions(self) -> &'static str {
        match self {
            Self::Server | Self::Renewed | Self::Expired | Self::Foreign => "server",
            Self::Client | Self::ForeignClient => "client",
            Self::WrongHost => "wrong_host",
            Self::SelfSigned | Self::ExpiredSelfSigned => "self_signed",
            Self::WrongHostSelfSigned => "self_signed_wrong_host",
        }
    }
}
