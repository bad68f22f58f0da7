//! `rlaas events`: parts of limits that keys have used.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rlaas_proto::ratelimit::admin::v1::{ListThresholdEventsRequest, ThresholdEvent};
use rlaas_proto::values::duration;
use tokio::time::sleep;
use tonic::Code;

use crate::call::{CallArgs, CommandOutput, to_json};
use crate::text::{self, project_id};

/// Time after which a server that is away is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The options of `rlaas events`.
#[derive(Args, Debug)]
pub struct EventsArgs {
    /// Only events in this project [default: that without a key]
    #[arg(long, value_name = "ID")]
    project: Option<String>,
    /// Only events after this one, by its id, as --json prints it
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    after: String,
    /// Print events as they come, until nobody reads them any more
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    call: CallArgs,
}

/// Prints events of thresholds, oldest first.
pub fn run(args: &EventsArgs) -> ExitCode {
    args.call.run(async |admin| {
        let mut request = ListThresholdEventsRequest {
            project_id: project_id(args.project.as_deref().unwrap_or_default()),
            after: args.after.clone(),
            wait: args.follow.then(|| duration(args.call.wait().into())),
            page_size: 0,
        };
        let (mut known_dropped, mut is_connected) = (0, None);
        loop {
            let response = match admin.list_threshold_events(request.clone()).await {
                // The server starts again, or another one takes its place.
                Err(status) if is_connected.is_some() && status.code() == Code::Unavailable => {
                    if is_connected.replace(false) == Some(true) {
                        eprintln!("rlaas: {}: trying again", status.message());
                    }
                    pause(RETRY_INTERVAL).await;
                    continue;
                }
                answered => answered?.into_inner(),
            };
            is_connected = args.follow.then_some(true);
            let mut lines = String::new();
            for event in &response.events {
                lines += &if args.call.json {
                    to_json("admin.v1.ThresholdEvent", event)
                } else {
                    line(event)
                };
                lines.push('\n');
            }
            let dropped = response.dropped.saturating_sub(known_dropped);
            if dropped > 0 {
                let dropped = text::count(dropped, "event");
                eprintln!("rlaas: {dropped} left out by the server, beyond 100 a second");
            }
            known_dropped = response.dropped;
            let mut out = io::stdout().lock();
            let is_read = out.write_all(lines.as_bytes()).and_then(|()| out.flush()).is_ok();
            if !is_read || (response.events.is_empty() && !args.follow) {
                return Ok(CommandOutput::printed());
            }
            request.after = response.last;
        }
    })
}

#[expect(clippy::disallowed_methods, reason = "nothing says when a server is there again")]
async fn pause(time: Duration) {
    sleep(time).await;
}

/// Returns one line about an event.
fn line(event: &ThresholdEvent) -> String {
    format!(
        "{}  {} {}: {} of {} used ({}){}, until {}",
        text::time(event.time.as_ref()),
        text::value(&event.rule),
        text::key(event.key.as_ref()),
        event.count,
        event.limit,
        text::share(event.threshold_ppm).unwrap_or_default(),
        if event.shadow { ", in shadow mode" } else { "" },
        text::time(event.window_ends_at.as_ref()),
    )
}
