//! Forms: only those of the console's own pages, made for their visitor, change anything.

use super::browser::Browser;
use super::{ADMIN, OPERATE, start_with_auth};

#[tokio::test]
async fn a_form_needs_the_secret_of_its_session() {
    let server = start_with_auth(&[]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    let other = Browser::signed_in(&server, ADMIN).await;
    let (own, foreign) = (browser.secret("instances").await, other.secret("instances").await);
    assert_ne!(own, foreign);
    for body in ["", "secret=", &format!("secret={foreign}"), &format!("secret={own}&secret={own}")]
    {
        let refused = browser.post("sign-out", body).await;
        assert_eq!(refused.status, 403, "{body}");
        assert!(refused.body.contains("Nothing was changed"), "{}", refused.body);
    }
    assert_eq!(browser.get("instances").await.status, 200, "still signed in");
    let signed_out = browser.post("sign-out", &format!("secret={own}")).await;
    assert_eq!((signed_out.status, signed_out.header("location")), (303, Some("sign-in")));
    assert!(signed_out.header("set-cookie").expect("a cookie").contains("Max-Age=0"));
    assert_eq!(browser.get("instances").await.status, 303);
    assert_eq!(other.get("instances").await.status, 200, "the other session goes on");
}

#[tokio::test]
async fn a_form_must_come_from_a_page_of_the_console() {
    let server = start_with_auth(&[]);
    let mut browser = Browser::signed_in(&server, OPERATE).await;
    let secret = format!("secret={}", browser.secret("instances").await);
    let own = format!("http://{}", browser.address);
    for headers in [
        String::new(),
        "Origin: null\r\n".to_owned(),
        "Origin: https://evil.example\r\n".to_owned(),
        format!("Origin: {own}0\r\n"),
        format!("Origin: {own}\r\nOrigin: {own}\r\n"),
        format!("Origin: {own}.evil.example\r\n"),
    ] {
        let refused = browser.post_with("sign-out", &headers, &secret).await;
        assert_eq!(refused.status, 403, "{headers}: {refused:?}");
        let token = format!("by=token&token={ADMIN}");
        let refused = browser.post_with("sign-in", &headers, &token).await;
        assert_eq!((refused.status, refused.header("set-cookie")), (403, None), "{headers}");
    }
    let origin = format!("Origin: {own}\r\n");
    for content_type in ["", "Content-Type: text/plain\r\n", "Content-Type: application/json\r\n"] {
        let headers = format!("{origin}{content_type}");
        let refused = browser.send("POST", "sign-out", &headers, &secret).await;
        assert_eq!(refused.status, 400, "{content_type}");
    }
    for (body, what) in
        [("a".repeat(65 * 1024), "too long"), (format!("{secret}&x=%ff"), "not UTF-8")]
    {
        assert_eq!(browser.post("sign-out", &body).await.status, 400, "{what}");
    }
    assert_eq!(browser.send("PUT", "sign-out", &origin, &secret).await.status, 405);
    assert_eq!(browser.get("sign-out").await.status, 405);
    assert_eq!(browser.get("instances").await.status, 200, "still signed in");
    // Behind a proxy that ends TLS the page's origin is https.
    let proxied = format!("Origin: https://{}\r\nX-Forwarded-Proto: https\r\n", browser.address);
    let signed_in = browser.post_with("sign-in", &proxied, &format!("token={ADMIN}")).await;
    let cookie = signed_in.header("set-cookie").expect("a cookie");
    assert!(cookie.contains("; Secure"), "{cookie}");
    browser.cookie = None;
    let ended = browser.post("sign-out", &secret).await;
    assert_eq!(ended.header("location"), Some("sign-in?unsent=1"));
}
