//! `rlaas reserve`: runs a command while units are held for it.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rlaas_client::ApiChannel;
use rlaas_core::clock::{Clock, Deadline};
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{
    CancelRequest, CommitRequest, ExtendRequest, ReserveRequest, ReserveResponse,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::check::RequestArgs;
use crate::client::runtime;
use crate::{Signals, response};

/// Exit code if the request is denied.
const EXIT_DENIED: u8 = 75;
/// Exit code if no server answers.
const EXIT_NO_SERVER: u8 = 69;
/// Variable with the path of a file to which the command may write what it has cost.
const COST_FILE: &str = "RLAAS_COST_FILE";
/// Shortest and longest time between two extensions.
const EXTENSIONS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// Time between two extensions where the end has passed already, by the clock of this machine.
const MISSED: Duration = Duration::from_secs(1);
/// Longest time of one extension.
const CALL: Duration = Duration::from_secs(2);
/// Longest time between two attempts.
const ATTEMPTS: Duration = Duration::from_secs(5);

/// The options of `rlaas reserve`.
#[derive(Args, Debug)]
pub struct ReserveArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Time to hold; it is extended while the command runs [default: that of the rules]
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
    /// Time for which a denied request is tried again
    #[arg(long, value_name = "D", default_value = "0s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// End the command if the reservation can't be extended
    #[arg(long)]
    strict: bool,
    /// The command to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Reserves, runs the command, and settles. Returns the exit code of the command.
pub fn run(args: &ReserveArgs) -> ExitCode {
    match runtime().and_then(|runtime| runtime.block_on(reserve_and_run(args))) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("rlaas: {error:#}");
            ExitCode::from(EXIT_NO_SERVER)
        }
    }
}

async fn reserve_and_run(args: &ReserveArgs) -> anyhow::Result<u8> {
    let (server, client) = args.request.connect().await?;
    let mut service = ReservationServiceClient::new(client.channel());
    let (signals, cost_file) = (Signals::listen()?, CostFile::create()?);
    let until = Deadline::within(args.wait);
    let held = loop {
        let ttl = args.ttl.map(prost_types::Duration::try_from).transpose()?;
        let request = ReserveRequest { request: Some(args.request.message()?), ttl };
        let answer = service.reserve(request).await.map_err(|status| server.explain(&status))?;
        let verdict = answer.get_ref().verdict.clone().unwrap_or_default();
        if verdict.allowed {
            break answer.into_inner();
        }
        let wait = verdict.retry_after.and_then(|wait| Duration::try_from(wait).ok());
        let wait = wait.map(|wait| with_jitter(wait.min(ATTEMPTS)));
        if let Some(wait) = wait.filter(|_| !until.has_passed()) {
            // Others may settle earlier than the wait says.
            pause(wait.min(until.remaining())).await;
            continue;
        }
        let cost = args.request.cost().unwrap_or(1);
        eprintln!("{}", response::to_text(&verdict, &args.request.user, cost));
        return Ok(EXIT_DENIED);
    };
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).env(COST_FILE, &cost_file.path);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            cancel(&mut service, held.reservation_id).await;
            eprintln!("rlaas: {}: {error}", args.command[0]);
            return Ok(if error.kind() == ErrorKind::NotFound { 127 } else { 126 });
        }
    };
    let status = attend(args, &mut service, &held, &mut child, &signals).await?;
    let written = cost_file.read();
    if !held.reservation_id.is_empty() {
        if status.success() || written.is_some() {
            let request = CommitRequest {
                reservation_id: held.reservation_id,
                actual: written,
                ..CommitRequest::default()
            };
            // Once more: it charges once.
            let settled = match service.commit(request.clone()).await {
                Err(_) => service.commit(request).await,
                settled => settled,
            };
            if let Err(status) = settled {
                eprintln!("rlaas: warning: not settled: {}", server.explain(&status));
            }
        } else {
            cancel(&mut service, held.reservation_id).await;
        }
    }
    let by_signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(by_signal).unwrap_or(1);
    Ok(u8::try_from(code).unwrap_or(1))
}

/// Waits for the command. Passes signals on to it, and extends the reservation at half of its time.
async fn attend(
    args: &ReserveArgs,
    service: &mut ReservationServiceClient<ApiChannel>,
    held: &ReserveResponse,
    child: &mut Child,
    signals: &Signals,
) -> anyhow::Result<std::process::ExitStatus> {
    let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    let signal = |signal| pid.map(|pid| kill_process(pid, signal));
    let (mut number, mut expires_at) = (1, held.expires_at);
    let mut extends = !held.reservation_id.is_empty();
    loop {
        let half = half_of_the_time(args.ttl, expires_at);
        tokio::select! {
            status = child.wait() => return status.context("wait for the command"),
            () = signals.nth(number) => {
                number += 1;
                let _has_ended = signal(Signal::TERM);
            }
            () = pause(half), if extends => {
                let ttl = args.ttl.map(prost_types::Duration::try_from).transpose()?;
                // Longer than any rule allows: it is cut.
                let ttl = ttl.or(Some(prost_types::Duration { seconds: 86_400, nanos: 0 }));
                let reservation_id = held.reservation_id.clone();
                let request = ExtendRequest { reservation_id, ttl, ..ExtendRequest::default() };
                let problem = match timeout(CALL, service.extend(request)).await {
                    Err(_) => "no answer".to_owned(),
                    Ok(Err(status)) => {
                        // It has ended: there is nothing to extend.
                        extends = status.code() != Code::NotFound;
                        status.message().to_owned()
                    }
                    Ok(Ok(answer)) => {
                        let answer = answer.into_inner();
                        expires_at = answer.expires_at;
                        if answer.verdict.is_some_and(|verdict| verdict.allowed) {
                            continue;
                        }
                        "denied".to_owned()
                    }
                };
                eprintln!("rlaas: warning: the reservation was not extended: {problem}");
                if args.strict {
                    let _has_ended = signal(Signal::TERM);
                }
            }
        }
    }
}

async fn cancel(service: &mut ReservationServiceClient<ApiChannel>, reservation_id: String) {
    if !reservation_id.is_empty() {
        // It ends by itself.
        let _best_effort = service.cancel(CancelRequest { reservation_id }).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "the time between two calls")]
async fn pause(time: Duration) {
    sleep(time).await;
}

/// Returns half of the time that is left, by the clock of this machine.
fn half_of_the_time(ttl: Option<Duration>, ends: Option<prost_types::Timestamp>) -> Duration {
    let now = Duration::from_micros(Clock::default().now().as_micros());
    let ends = ends.and_then(|ends| {
        Some(Duration::new(ends.seconds.try_into().ok()?, ends.nanos.try_into().ok()?))
    });
    let left = ends.unwrap_or_default().saturating_sub(now);
    let left = ttl.map_or(left, |ttl| left.min(ttl));
    // A clock that is ahead, or behind, must not make calls without end, or too late.
    let half = if left.is_zero() { MISSED } else { left / 2 };
    half.clamp(EXTENSIONS.0, EXTENSIONS.1)
}

/// Returns between all and one and a half of a wait, so that those who wait do not come at once.
fn with_jitter(wait: Duration) -> Duration {
    let thousandths = u32::try_from(RandomState::new().hash_one(()) % 1_000).unwrap_or_default();
    wait + wait / 2_000 * thousandths
}

/// A file to which the command may write what it has cost, in a folder of its own.
struct CostFile {
    folder: PathBuf,
    path: PathBuf,
}

impl CostFile {
    fn create() -> anyhow::Result<Self> {
        let random = RandomState::new().hash_one(());
        let name = format!("rlaas-{}-{random:016x}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let created = fs::DirBuilder::new().mode(0o700).create(&folder);
        created.with_context(|| format!("can't create {}", folder.display()))?;
        let path = folder.join("cost");
        Ok(Self { folder, path })
    }

    /// Returns the units in the file; `None` if there is none.
    fn read(&self) -> Option<u64> {
        let text = fs::read_to_string(Path::new(&self.path)).ok()?;
        let units = text.trim().parse().ok();
        if units.is_none() {
            eprintln!(
                "rlaas: warning: {COST_FILE} must have a whole number: what is held is charged"
            );
        }
        units
    }
}

impl Drop for CostFile {
    fn drop(&mut self) {
        let _is_gone = fs::remove_dir_all(&self.folder);
    }
}
