//! `rlaas bench`: a load generator over gRPC.
//!
//! [`rlaas_client::load`] makes the calls and counts them. This module has the options, the progress
//! line, the report and the plots.

mod load;
mod options;
mod plot;
mod progress;
mod report;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

pub(super) use self::options::BenchArgs;
use self::report::Report;
use super::EXIT_NO_RESPONSE;
use super::client::runtime;

pub(super) fn run(args: &BenchArgs) -> ExitCode {
    match bench(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rlaas: {error:#}");
            ExitCode::from(EXIT_NO_RESPONSE)
        }
    }
}

fn bench(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    args.validate()?;
    let mut hdr = Output::create("--hdr", args.hdr.as_ref())?;
    let mut plot = Output::create("--plot", args.plot.as_ref())?;
    let measured = runtime()?.block_on(load::run(args))?;
    let report = Report::new(args, &measured);
    println!("{}", if args.json { report.to_json() } else { report.to_text() });
    let latency = &measured.stats.answered;
    if let Some(hdr) = &mut hdr {
        hdr.write(&plot::distribution(latency))?;
    }
    if let Some(plot) = &mut plot {
        plot.write(&plot::svg(latency, &report.title()))?;
    }
    let is_answered = measured.stats.measured.decisions() > 0;
    Ok(if is_answered { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NO_RESPONSE) })
}

/// An output file. It is created before the load begins, so a wrong path fails at once and not after
/// the run.
struct Output<'a> {
    option: &'static str,
    path: &'a Path,
    file: File,
}

impl<'a> Output<'a> {
    fn create(option: &'static str, path: Option<&'a PathBuf>) -> anyhow::Result<Option<Self>> {
        let create = |path: &'a PathBuf| {
            let file = File::create(path);
            let file = file.with_context(|| format!("{option}: can't write {}", path.display()));
            Ok(Self { option, path, file: file? })
        };
        path.map(create).transpose()
    }

    fn write(&mut self, text: &str) -> anyhow::Result<()> {
        let written = self.file.write_all(text.as_bytes());
        written.with_context(|| format!("{}: can't write {}", self.option, self.path.display()))
    }
}
