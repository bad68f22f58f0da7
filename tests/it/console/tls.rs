//! The console over TLS: secure cookies, and sign-in by certificate.

use super::browser::Browser;
use super::{ADMIN, CONSOLE, auth};
use crate::api::tls::handshake;
use crate::http::client::{HttpResponse, exchange_over};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::tls::{Certificate, Certificates};

const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";

struct SecureBrowser<'a> {
    browser: Browser,
    certificates: &'a Certificates,
    shown: Option<Certificate>,
}

impl SecureBrowser<'_> {
    async fn send(&self, method: &str, page: &str, headers: &str, body: &str) -> HttpResponse {
        let Self { browser, certificates, shown } = self;
        let stream = handshake(&browser.address, certificates, *shown, &["http/1.1"]).await;
        let request = browser.request(method, page, headers, body);
        exchange_over(stream.expect("a handshake"), request.as_bytes()).await
    }

    async fn sign_in(&mut self, body: &str) -> HttpResponse {
        let origin = format!("{FORM}Origin: https://{}\r\n", self.browser.address);
        let response = self.send("POST", "sign-in", &origin, body).await;
        if let Some(cookie) = response.header("set-cookie") {
            self.browser.cookie = cookie.split(';').next().map(str::to_owned);
        }
        response
    }
}

fn settings(certificates: &Certificates) -> Vec<String> {
    vec![
        CONSOLE.to_owned(),
        format!("server.tls.cert={}", certificates.certificate(Certificate::Server).display()),
        format!("server.tls.key={}", certificates.key(Certificate::Server).display()),
    ]
}

fn start(text: &str, settings: &[String]) -> Rlaas {
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    Rlaas::start_from(&TempDir::new().write("rlaas.yaml", text), &settings)
}

#[tokio::test]
async fn with_tls_the_cookie_is_secure_and_the_origin_too() {
    let certificates = Certificates::make();
    let server = start(&auth(&[(ADMIN, "roles: [admin]")]), &settings(&certificates));
    let browser = Browser::new(&server);
    let mut browser = SecureBrowser { browser, certificates: &certificates, shown: None };
    let body = format!("token={ADMIN}");
    let insecure = format!("{FORM}Origin: http://{}\r\n", browser.browser.address);
    assert_eq!(browser.send("POST", "sign-in", &insecure, &body).await.status, 403);
    let response = browser.sign_in(&body).await;
    let cookie = response.header("set-cookie").expect("a cookie");
    assert!(cookie.ends_with("; HttpOnly; SameSite=Lax; Secure"), "{cookie}");
    let page = browser.send("GET", "instances", "", "").await;
    assert!(page.status == 200 && !page.body.contains("with your certificate"));
}

#[tokio::test]
async fn a_certificate_signs_in_and_is_shown_with_each_request() {
    let certificates = Certificates::make();
    let mut settings = settings(&certificates);
    settings.push(format!("server.tls.client-ca={}", certificates.authority().display()));
    let server = start("auth: {clients: [{name: shop.example, roles: [admin]}]}", &settings);
    let browser = Browser::new(&server);
    let shown = Some(Certificate::Client);
    let mut browser = SecureBrowser { browser, certificates: &certificates, shown };
    let first = browser.send("GET", "instances", "", "").await;
    assert_eq!(first.status, 303, "another page could make a browser send its certificate");
    let form = browser.send("GET", "sign-in", "", "").await;
    assert!(form.body.contains("with your certificate"), "{}", form.body);
    assert_eq!(browser.sign_in("by=certificate").await.status, 303);
    let page = browser.send("GET", "instances", "", "").await;
    assert!(page.status == 200 && page.body.contains("certificate:shop.example"), "{page:?}");
    browser.shown = None;
    let stolen = browser.send("GET", "instances", "", "").await;
    assert_eq!(stolen.status, 303, "a session without its certificate");
    assert_eq!(browser.sign_in("by=certificate").await.status, 401);
}
