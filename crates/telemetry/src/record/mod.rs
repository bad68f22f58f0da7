//! Records decided requests in a file, off the path of decisions.
//!
//! | file | has |
//! | --- | --- |
//! | `batch.rs` | requests of each thread on their way to the recorder |
//! | `file.rs` | the file: blocks, rotation, errors |
//! | `settings.rs` | settings, and the header |
//! | `thread.rs` | the thread that writes |
//!
//! A deciding thread appends a request to a list of its own. What the recorder can't
//! take or write is dropped, counted in `rlaas_record_dropped_total` and in the recording itself; a
//! decision never waits for it.

mod batch;
mod file;
mod settings;
mod thread;

pub use file::RecordFileError;
pub use settings::{RecordSettings, Rotation, SampleSettings};

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use rlaas_core::clock::{Clock, Timestamp};
use rlaas_core::rules::descriptors::{DescriptorRequest, RequestDescriptor};
use rlaas_core::rules::{Part, Request};
use rlaas_limiter::{CheckError, DescriptorVerdict, RuleDecision, Source, Verdict};
use rlaas_simulation::RecordedRequest;
use rlaas_simulation::recording::{KeySample, RecordedLine};
use thiserror::Error;

use self::batch::RecordQueue;
use self::file::RecordFile;
use self::thread::RecordThread;

/// Batches that wait for the recorder: at most 32 MiB.
const QUEUE_CAPACITY: usize = 64;
/// Pause after which a thread without decisions sends its batch.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

/// Metrics of the recording.
#[derive(Clone, Debug, Default)]
pub struct RecordMetrics {
    /// Requests that were not recorded.
    pub dropped: Counter,
    /// 1 while the file can't be written, else 0.
    pub failing: Gauge,
}

/// Records decided requests. Clones share everything.
#[derive(Clone)]
pub struct TrafficRecorder(Arc<Recording>);

struct Recording {
    queue: Arc<RecordQueue>,
    sample: Option<KeySample>,
    clock: Clock,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Reason why the recorder can't be started.
#[derive(Debug, Error)]
pub enum RecorderError {
    /// The file can't be opened.
    #[error(transparent)]
    File(#[from] RecordFileError),
    /// The thread can't be started.
    #[error("can't start a thread")]
    Thread(#[source] std::io::Error),
}

impl TrafficRecorder {
    /// Opens the file, and starts the thread that writes it.
    ///
    /// # Errors
    ///
    /// [`RecorderError`]. A disk that is full is no error: see the metrics.
    pub fn start(settings: RecordSettings, metrics: RecordMetrics) -> Result<Self, RecorderError> {
        let clock = Clock::default();
        let (header, sample) = settings.header();
        let file = RecordFile::open(settings, header, metrics.clone(), clock.now())?;
        let (sender, batches) = sync_channel(QUEUE_CAPACITY);
        let queue = Arc::new(RecordQueue {
            sender,
            dropped: metrics.dropped,
            lost: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
        });
        let thread =
            RecordThread { batches, queue: Arc::downgrade(&queue), file, clock: clock.clone() };
        let builder = std::thread::Builder::new().name("record".to_owned());
        let thread = builder.spawn(move || thread.run()).map_err(RecorderError::Thread)?;
        let thread = Mutex::new(Some(thread));
        Ok(Self(Arc::new(Recording { queue, sample, clock, thread })))
    }

    /// Records a request. Dry runs are no traffic; nor are requests that were answered by their
    /// request id, or refused because of it, and those in a project that there is not.
    #[inline]
    pub fn record(&self, request: &Request<'_>, decided: &Result<Verdict, CheckError>) {
        let Recording { queue, sample, .. } = &*self.0;
        let (first, was_refused) = match decided {
            Ok(verdict) if verdict.replayed => return,
            Ok(verdict) => (verdict.decisions.first(), !verdict.is_allowed()),
            Err(CheckError::RequestId(_) | CheckError::UnknownProject) => return,
            Err(error) => (None, matches!(error, CheckError::NoRule)),
        };
        let is_kept = |sample: &KeySample| sample.has_fields(|part: &Part| part.value_in(request));
        if !request.dry_run() && sample.as_ref().is_none_or(is_kept) {
            let (at, request) = (self.time(first), request.into());
            batch::push(queue, RecordedLine::Request { at, request, was_refused });
        }
    }

    /// Records a request by descriptors: those of its descriptors that are in the sample.
    pub fn record_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
        decided: &Result<DescriptorVerdict, CheckError>,
    ) {
        let Recording { queue, sample, .. } = &*self.0;
        let (first, was_refused) = match decided {
            Ok(verdict) => (verdict.answers.iter().flatten().next(), !verdict.is_allowed()),
            Err(CheckError::Descriptor(_)) => return,
            Err(_) => (None, false),
        };
        let is_kept = |descriptor: &RequestDescriptor<'_>| {
            sample.as_ref().is_none_or(|sample| {
                sample.has_descriptor(request.domain(), descriptor.entries.iter().copied())
            })
        };
        if let Some(request) = RecordedRequest::from_descriptors(request, is_kept) {
            let at = self.time(first.map(|answer| &answer.decided));
            batch::push(queue, RecordedLine::Request { at, request, was_refused });
        }
    }

    /// Returns the time by the store's clock if it decided, else by that of this machine.
    #[inline]
    fn time(&self, decided: Option<&RuleDecision>) -> Timestamp {
        let by_store = decided
            .filter(|decided| decided.source == Source::Store)
            .map(|decided| decided.decision.at)
            .filter(|at| *at != Timestamp::EPOCH);
        by_store.unwrap_or_else(|| self.0.clock.now())
    }

    /// Sends the requests of the calling thread to the recorder several times a second, for ever.
    /// Each thread that decides must do so, or its last requests are recorded late.
    pub async fn flush_thread() {
        let mut ticks = tokio::time::interval(FLUSH_INTERVAL);
        loop {
            ticks.tick().await;
            batch::flush();
        }
    }

    /// Writes what is waiting, and ends the recording. Blocks until that is done.
    pub fn close(&self) {
        batch::flush();
        self.0.queue.is_closing.store(true, Ordering::Release);
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            // It has panicked already if this fails.
            let _ended = thread.join();
        }
    }
}

impl fmt::Debug for TrafficRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficRecorder").finish_non_exhaustive()
    }
}
