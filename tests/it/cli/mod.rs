//! The commands and the configuration, as their users meet them.

mod bench;
mod commands;
mod configuration;
mod logs;
mod secured;
mod terminal;
mod transport;

#[path = "../../../examples/picture.rs"]
#[expect(dead_code, reason = "its main is for cargo run")]
mod picture;

#[tokio::test]
async fn the_picture_of_the_algorithms_is_what_its_program_draws() {
    let drawn = picture::draw().await.expect("a picture");
    let kept = include_str!("../../../docs/algorithms.svg");
    assert!(drawn == kept, "cargo run --example picture > docs/algorithms.svg");
}
