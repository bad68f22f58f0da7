//! Opens the inputs: few at once, many when they are needed.

use std::fs;
use std::path::PathBuf;

use rlaas_core::clock::Timestamp;

use super::opener::LogOpener;
use super::recording::{RecordedRefusals, RecordingSource, Wanted};
use super::reopened::ReopenedFile;
use crate::recording::Header;
use crate::traffic::input::{Input, InputError, InputKind};
use crate::traffic::order::{OrderSettings, Source, earliest_time};
use crate::traffic::{TrafficError, TrafficInput, TrafficSettings};

/// Most inputs that are all opened at once and stay open.
const MAX_OPENED_AT_ONCE: usize = 64;

/// The inputs of the traffic. Of many files the first lines are read, so that each can be opened
/// again when it is needed.
#[derive(Debug)]
pub(in crate::traffic) struct Inputs {
    pending: Vec<PendingInput>,
    logs: Option<LogOpener>,
    refusals: RecordedRefusals,
    /// Project whose requests are read from recordings.
    project: String,
    headers: Vec<Header>,
    /// Bytes of all inputs; `None` if one is no file.
    bytes: Option<u64>,
}

#[derive(Debug)]
enum PendingInput {
    /// Open; `None` when it is read.
    Opened(Option<Box<dyn Source>>),
    /// A file that is opened when it is needed.
    File(PathBuf),
}

impl Inputs {
    /// Opens the inputs. Returns them with a time for each that none of its lines is before.
    ///
    /// # Errors
    ///
    /// [`TrafficError`] if one of them can't be opened, or if the settings can't be used.
    pub(in crate::traffic) fn open(
        settings: &TrafficSettings,
        order: &OrderSettings,
    ) -> Result<(Self, Vec<Timestamp>), TrafficError> {
        let is_standard_input = |input: &&TrafficInput| **input == TrafficInput::StandardInput;
        match settings.inputs.iter().filter(is_standard_input).count() {
            _ if settings.inputs.is_empty() => return Err(TrafficError::NoInputs),
            0 | 1 => {}
            _ => return Err(TrafficError::StandardInputTwice),
        }
        let opener = |format| LogOpener::new(format, settings);
        let logs = settings.format.as_ref().map(opener).transpose()?;
        let skips_refused = settings.skip_statuses.contains(&429);
        let refusals =
            if skips_refused { RecordedRefusals::Skipped } else { RecordedRefusals::Kept };
        let (pending, headers, bytes) = (Vec::new(), Vec::new(), Some(0));
        let project = settings.project.clone();
        let mut inputs = Self { pending, logs, refusals, project, headers, bytes };
        let are_few = settings.inputs.len() <= MAX_OPENED_AT_ONCE;
        let mut earliest = Vec::with_capacity(settings.inputs.len());
        for input in &settings.inputs {
            let reopened = match input {
                TrafficInput::File(path) if !are_few && is_regular_file(path) => Some(path),
                _ => None,
            };
            let at = match reopened {
                None => inputs.add_opened(input.open()?)?,
                Some(path) => inputs.add_file(path.clone(), order)?,
            };
            earliest.push(at);
        }
        inputs.check_options(settings)?;
        Ok((inputs, earliest))
    }

    /// Returns the headers of the recordings.
    pub(in crate::traffic) fn headers(&self) -> &[Header] {
        &self.headers
    }

    /// Returns how many bytes the inputs have, if that is known.
    pub(in crate::traffic) fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Returns the mappings that follow from the format.
    pub(in crate::traffic) fn default_mappings(&self) -> &[String] {
        self.logs.as_ref().map_or(&[], LogOpener::defaults)
    }

    /// Returns the input of this number from its first line on. Each can be returned once.
    ///
    /// # Errors
    ///
    /// [`TrafficError`] if it can't be opened.
    pub(in crate::traffic) fn source(
        &mut self,
        number: usize,
    ) -> Result<Box<dyn Source>, TrafficError> {
        match &mut self.pending[number] {
            PendingInput::Opened(source) => Ok(source.take().expect("each is returned once")),
            PendingInput::File(path) => {
                let input = reopened(path.clone())?;
                self.start(input).map(|(source, _)| source)
            }
        }
    }

    fn add_opened(&mut self, input: Input) -> Result<Timestamp, TrafficError> {
        self.add_bytes(&input);
        let (source, header) = self.start(input)?;
        self.headers.extend(header);
        self.pending.push(PendingInput::Opened(Some(source)));
        Ok(Timestamp::EPOCH)
    }

    fn add_file(
        &mut self,
        path: PathBuf,
        order: &OrderSettings,
    ) -> Result<Timestamp, TrafficError> {
        let input = reopened(path.clone())?;
        self.add_bytes(&input);
        let (source, header) = self.start(input)?;
        self.headers.extend(header);
        self.pending.push(PendingInput::File(path));
        earliest_time(source, order)
    }

    fn add_bytes(&mut self, input: &Input) {
        self.bytes = self.bytes.zip(input.status().size()).map(|(all, bytes)| all + bytes);
    }

    /// Starts to read an input. Returns the header too, if it is a recording.
    fn start(&self, input: Input) -> Result<(Box<dyn Source>, Option<Header>), TrafficError> {
        if input.kind() != InputKind::Text {
            let wanted = Wanted { refusals: self.refusals, project: &self.project };
            let source = RecordingSource::new(input, wanted)?;
            let header = source.header().clone();
            return Ok((Box::new(source), Some(header)));
        }
        let Some(logs) = &self.logs else {
            return Err(TrafficError::NoFormat { input: input.name().to_owned() });
        };
        Ok((Box::new(logs.open(input.into_lines())), None))
    }

    /// Checks that options of lines have lines.
    fn check_options(&self, settings: &TrafficSettings) -> Result<(), TrafficError> {
        let are_all_recordings = self.headers.len() == self.pending.len();
        let is_ignored = !settings.mappings.is_empty() && are_all_recordings
            || !settings.conditions.is_empty() && !self.headers.is_empty();
        if is_ignored { Err(TrafficError::MappedRecording) } else { Ok(()) }
    }
}

fn reopened(path: PathBuf) -> Result<Input, InputError> {
    let name = path.display().to_string();
    let size = fs::metadata(&path).map(|metadata| metadata.len()).ok();
    Input::from_reader(name, Box::new(ReopenedFile::new(path)), size)
}

fn is_regular_file(path: &PathBuf) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}
