//! Certificates of all kinds that TLS tests need, made anew by `openssl`, so none expires
//! unnoticed.

use std::path::PathBuf;
use std::process::Command;

use crate::TempDir;
use crate::redis::{RedisServer, owned};

const CONFIGURATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/openssl.conf");

/// The kind of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// For `localhost` and 127.0.0.1, signed by the trusted authority.
    Server,
    /// As [`Certificate::Server`], a renewed one.
    Renewed,
    /// For a client named `shop.example` and `spiffe://example/shop`, signed by the trusted
    /// authority.
    Client,
    /// As [`Certificate::Client`], but signed by an untrusted authority.
    ForeignClient,
    /// As [`Certificate::Server`], but expired.
    Expired,
    /// As [`Certificate::Server`], but signed by an untrusted authority.
    Foreign,
    /// Signed by the trusted authority, for another name and address.
    WrongHost,
    /// As [`Certificate::Server`], but self-signed.
    SelfSigned,
    /// As [`Certificate::SelfSigned`], but expired.
    ExpiredSelfSigned,
    /// As [`Certificate::SelfSigned`], for another name and address.
    WrongHostSelfSigned,
}

/// Whether a server requires client certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Rejects clients without a certificate.
    Required,
    /// Does not request a certificate.
    Ignored,
}

/// Two authorities and certificates of all kinds, removed on drop.
#[derive(Debug)]
pub struct Certificates(TempDir);

impl Certificates {
    /// Makes the authorities and a certificate of each kind.
    ///
    /// # Panics
    ///
    /// If openssl is not installed.
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

    /// Returns the path of the certificate of the trusted authority, in PEM.
    pub fn authority(&self) -> PathBuf {
        self.0.path("authority.crt")
    }

    /// Returns the path of a certificate, in PEM.
    pub fn certificate(&self, certificate: Certificate) -> PathBuf {
        self.0.path(&format!("{}.crt", certificate.name()))
    }

    /// Returns the path of the key of a certificate, in PEM (PKCS #8).
    pub fn key(&self, certificate: Certificate) -> PathBuf {
        self.0.path(&format!("{}.key", certificate.name()))
    }

    /// Starts a redis-server with this certificate that listens with TLS only.
    pub fn serve(&self, certificate: Certificate, clients: ClientCertificates) -> RedisServer {
        RedisServer::start_tls(&self.arguments(certificate, clients))
    }

    /// Returns the arguments for [`RedisServer::start_tls`] with this certificate.
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

    /// Creates a self-signed authority.
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

    /// Creates a key and a certificate request, or a certificate with `-x509`.
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

    /// Returns the section of `openssl.conf` with the extensions of the certificate.
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
