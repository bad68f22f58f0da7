//! The commands and the configuration of the program.

mod admin;
mod change_warnings;
mod commands;
mod completions;
mod configuration;
mod files_of_projects;
mod forged_text;
mod golden;
mod logs;
mod removed;
mod rule_tests;
mod rules;
mod simulate;
mod support_desk;
mod terminal;
mod tls_and_tokens;
mod top;
mod traffic;
mod transport_errors;
mod unset_fields;

#[path = "../../../examples/picture.rs"]
#[expect(dead_code, reason = "main is only used by cargo run")]
mod picture;

#[tokio::test]
async fn algorithms_picture_is_up_to_date() {
    let drawn = picture::render().await.expect("a picture");
    let kept = include_str!("../../../docs/algorithms.svg");
    assert!(drawn == kept, "cargo run --example picture > docs/algorithms.svg");
}
