//! A limiter inside a program: rules from code, decisions from memory, expiry in the background.
//!
//! ```sh
//! cargo run -p rlaas-limiter --example embed
//! ```

use std::error::Error;
use std::time::Duration;

use rlaas_limiter::{Deadline, Limiter, Request, Rule};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder()
        .rule(Rule::gcra("per-user").limit(3).per(Duration::from_secs(60)))
        .rule(
            Rule::fixed_window("exports").resource("/export").limit(1).per(Duration::from_secs(60)),
        )
        .build()?;
    // The owner of the limiter runs its background work, and stops it by dropping the future.
    let background = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.run().await }
    });
    let mut denied = Vec::new();
    for resource in ["/export", "/export", "/home", "/home", "/home"] {
        let request = Request::user("alice").resource(resource).attributes(&[("plan", "pro")]);
        let verdict = limiter.check(&request.build()?, Deadline::NEVER).await?;
        let decided = verdict.deciding();
        println!("{resource}: allowed {}, by {}", verdict.is_allowed(), decided.rule);
        if !verdict.is_allowed() {
            denied.push((resource, decided.rule.to_string()));
        }
    }
    background.abort();
    // All or nothing: the second export took no unit from the rule `per-user`.
    assert_eq!(denied, [("/export", "exports".to_owned()), ("/home", "per-user".to_owned())]);
    Ok(())
}

#[test]
fn embed_runs() {
    main().expect("the example");
}
