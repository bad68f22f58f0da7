//! The process: parse, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use rlaas::cli::Cli;

/// A call makes some twenty small allocations in tonic and prost, and frees them on the same thread.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // Without one the first connection by TLS would panic; there is none before.
    let _only_here = rustls::crypto::ring::default_provider().install_default();
    Cli::parse().run()
}
