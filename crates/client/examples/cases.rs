//! Plays `clients/cases.yaml` to the tests of clients in other languages, for ever. Binds the address of
//! its first argument, by default a free port, and prints the address.

#[path = "../tests/common/cases.rs"]
mod cases;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    Ok(cases::serve(listener).await?)
}
