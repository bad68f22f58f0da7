//! `rlaas plan`: finds limits that would have refused few of recorded traffic.
//!
//! [`rlaas_simulation::limits`] finds them. This module has the options, the text and the exit code.

mod options;
mod output;

use std::process::ExitCode;

use rlaas_simulation::limits::{HitRecorder, LimitReport, LimitsError, RecordedHits, find_limits};
use rlaas_simulation::pages::LimitsPage;
use rlaas_simulation::traffic::Traffic;

pub(super) use self::options::PlanArgs;
use self::output::PlanOutput;
use super::printable::{printable, printable_json};
use super::simulate::TrafficProgress;
use super::traffic::{no_result, write_page};
use super::{EXIT_CONFIG, EXIT_NO_RESPONSE};

/// Requests between two looks at the clock.
const REQUESTS_PER_LOOK: u64 = 16_384;

pub(super) fn run(args: &PlanArgs) -> ExitCode {
    match plan(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(PlanError::Shown(code)) => code,
        Err(PlanError::Failed(error, code)) => {
            eprintln!("rlaas: {}", printable(&format!("{error:#}")));
            ExitCode::from(code)
        }
    }
}

/// The reason why there is no plan.
enum PlanError {
    /// It was printed already.
    Shown(ExitCode),
    /// To be printed, with the exit code.
    Failed(anyhow::Error, u8),
}

impl From<LimitsError> for PlanError {
    fn from(error: LimitsError) -> Self {
        let code = match error {
            LimitsError::UnknownRule { .. } | LimitsError::InvalidLimit { .. } => EXIT_CONFIG,
            LimitsError::SpoolFull { .. } | LimitsError::Spool(_) => EXIT_NO_RESPONSE,
        };
        Self::Failed(error.into(), code)
    }
}

fn plan(args: &PlanArgs) -> Result<(), PlanError> {
    let rules = args.rules().map_err(PlanError::Shown)?;
    let settings = args.settings();
    settings.check()?;
    let recorder = HitRecorder::new(&rules, &args.rule, args.spool())?;
    let traffic = args.traffic.open();
    let mut traffic = traffic.map_err(|error| PlanError::Failed(error, EXIT_CONFIG))?;
    let mut progress = TrafficProgress::new(args.progress);
    let hits = record(&mut traffic, recorder, &mut progress);
    progress.clear();
    let hits = hits?;
    let report = find_limits(&hits, &settings, |pass| {
        progress.show_text(|_now| {
            let (algorithm, window) = (pass.algorithm.name(), pass.window);
            let (finished, total) = (pass.finished + 1, pass.total);
            format!("{algorithm} {window} ({finished} of {total}), pass {}", pass.number)
        });
    });
    progress.clear();
    print(args, &report?, &traffic)
}

/// Reads the traffic.
fn record(
    traffic: &mut Traffic,
    mut recorder: HitRecorder,
    progress: &mut TrafficProgress,
) -> Result<RecordedHits, PlanError> {
    let mut requests = 0_u64;
    loop {
        let next = traffic.next();
        match next.map_err(|error| PlanError::Failed(error.into(), EXIT_NO_RESPONSE))? {
            Some(request) => recorder.record(request, traffic.dictionary())?,
            None => return Ok(recorder.finish()),
        }
        requests += 1;
        if requests.is_multiple_of(REQUESTS_PER_LOOK) {
            progress.show(requests, traffic.progress());
        }
    }
}

fn print(args: &PlanArgs, report: &LimitReport, traffic: &Traffic) -> Result<(), PlanError> {
    let failed = |error| PlanError::Failed(error, EXIT_NO_RESPONSE);
    let output =
        PlanOutput { report, traffic: traffic.counts(), notes: report.notes(traffic.counts()) };
    if args.json {
        println!("{}", printable_json(&output.to_json()));
    } else {
        println!("{}", output.to_text());
    }
    if let Some(file) = &args.html {
        let html = LimitsPage { report, notes: &output.notes }.html();
        write_page(file, &html).map_err(failed)?;
    }
    if report.rules.is_empty() {
        return Err(failed(no_result("no request matched a rule", traffic.counts())));
    }
    args.traffic.check_read(traffic.counts()).map_err(failed)
}
