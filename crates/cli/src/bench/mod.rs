//! `rlaas bench`: a load generator over gRPC.
//!
//! [`rlaas_client::load`] makes the calls and counts them. This module has the options, the progress
//! line and the report.

mod distribution;
mod load;
mod options;
mod progress;
mod report;

use std::fs::File;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;

pub use self::options::BenchArgs;
use self::report::Report;
use crate::client::runtime;
use crate::{EXIT_NO_RESPONSE, exit_code};

/// Loads a server, and prints the report. Returns the exit code.
pub fn run(args: &BenchArgs) -> ExitCode {
    exit_code(bench(args), EXIT_NO_RESPONSE)
}

/// Returns `true` if something was decided.
fn bench(args: &BenchArgs) -> anyhow::Result<bool> {
    // Before the load begins, so a wrong path fails at once and not after the run.
    let hdr = args.hdr.as_ref().map(File::create).transpose().context("--hdr")?;
    let measured = runtime()?.block_on(load::run(args))?;
    let report = Report { args, measured: &measured };
    println!("{}", if args.json { report.to_json() } else { report.to_text() });
    if let Some(mut hdr) = hdr {
        let text = distribution::distribution(&measured.stats.answered);
        hdr.write_all(text.as_bytes()).context("--hdr")?;
    }
    Ok(measured.stats.measured.decisions() > 0)
}
