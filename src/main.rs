//! Entry point: parses the command line, runs the command, returns its exit code.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use rlaas::cli::Cli;

/// mimalloc, because a call makes about twenty small allocations in tonic and prost and frees them on
/// the same thread.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // rustls panics on the first TLS connection if no provider is installed. The result is ignored:
    // nothing was installed before.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    match Cli::read() {
        Ok(cli) => cli.run(),
        Err(code) => code,
    }
}
