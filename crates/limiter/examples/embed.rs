//! A limiter inside a program: rules from code, decisions from memory, a sweep in the background.
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
        .rule(Rule::gcra("per-user").limit(3).per(Duration::from_mins(1)))
        .rule(
            Rule::fixed_window("exports").resource("/export").limit(1).per(Duration::from_mins(1)),
        )
        .build()?;
    // The owner runs the background work, and stops it by dropping the task's future.
    let background = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.run().await }
    });
    let mut refused = Vec::new();
    for resource in ["/export", "/export", "/home", "/home", "/home"] {
        let request = Request::user("alice").resource(resource).attributes(&[("plan", "pro")]);
        let verdict = limiter.check(&request.build()?, Deadline::NEVER).await?;
        let decided = verdict.deciding();
        println!("{resource}: allowed {}, by {}", verdict.is_allowed(), decided.rule);
        if !verdict.is_allowed() {
            refused.push((resource, decided.rule.to_string()));
        }
    }
    background.abort();
    // The second export took nothing from the rule for users: all or nothing.
    assert_eq!(refused, [("/export", "exports".to_owned()), ("/home", "per-user".to_owned())]);
    Ok(())
}

#[test]
fn embed_runs() {
    main().expect("the example");
}
