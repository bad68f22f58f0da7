//! `rlaas record cat`: prints recordings as JSON lines, or in the compact form.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use rlaas_simulation::recording::{Header, JsonLinesWriter, Reader, RecordingError, Writer};
use rlaas_simulation::traffic::TrafficInput;
use rlaas_simulation::traffic::input::{DecodedStream, InputEnd, InputStatus};

use super::printable::{printable, printable_json};
use super::{EXIT_CONFIG, EXIT_NO, EXIT_NO_RESPONSE};

#[derive(Args, Debug)]
pub(super) struct RecordArgs {
    #[command(subcommand)]
    command: RecordCommand,
}

#[derive(Debug, Subcommand)]
enum RecordCommand {
    /// Print recordings as JSON lines: exit code 0, 2 if one is truncated or damaged, 64 if they
    /// can't be one
    Cat(CatArgs),
}

#[derive(Args, Debug)]
struct CatArgs {
    /// Recordings of either form, plain, gzip or zstd; - is standard input. Requests are printed in
    /// the order of the files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write the compact form
    #[arg(long)]
    compact: bool,
    /// Write a new file, which only its owner can read, instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Where requests go.
enum CatOutput {
    Lines(JsonLinesWriter<Box<dyn Write>>),
    Compact(Writer<Box<dyn Write>>),
}

/// An open recording.
struct OpenRecording {
    name: String,
    reader: Reader<DecodedStream>,
    status: Arc<InputStatus>,
}

/// Reason why not everything was printed.
enum CatError {
    /// The recordings, or the options, can't be what they are.
    Refused(anyhow::Error),
    /// An input can't be read.
    Input(anyhow::Error),
    /// The output can't be written.
    Output(anyhow::Error),
}

pub(super) fn run(args: &RecordArgs) -> ExitCode {
    let RecordCommand::Cat(args) = &args.command;
    let (code, error) = match cat(args) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(CatError::Refused(error)) => (EXIT_CONFIG, error),
        Err(CatError::Input(error)) => (EXIT_NO_RESPONSE, error),
        Err(CatError::Output(error)) => {
            let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
            if error.chain().filter_map(|error| error.downcast_ref()).any(is_closed) {
                return ExitCode::SUCCESS;
            }
            (EXIT_NO, error)
        }
    };
    eprintln!("rlaas: {}", printable(&format!("{error:#}")));
    ExitCode::from(code)
}

fn cat(args: &CatArgs) -> Result<(), CatError> {
    // All headers are read before anything is written.
    let recordings: Result<Vec<OpenRecording>, CatError> =
        args.files.iter().map(|file| OpenRecording::new(file)).collect();
    let recordings = recordings?;
    let header = common_header(&recordings)?;
    let mut output = CatOutput::new(args, &header)?;
    let mut incomplete = None;
    for recording in recordings {
        if let Err(error) = recording.copy_to(&mut output) {
            match error {
                CatError::Input(error) => incomplete = incomplete.or(Some(error)),
                other => return Err(other),
            }
        }
    }
    output.finish().map_err(|error| CatError::Output(error.into()))?;
    incomplete.map_or(Ok(()), |error| Err(CatError::Input(error)))
}

/// Returns the header of all recordings together. They must have hashed the same parts by the same
/// key, and be the same sample.
fn common_header(recordings: &[OpenRecording]) -> Result<Header, CatError> {
    let headers = recordings.iter().map(|recording| recording.reader.header());
    let first = headers.clone().min_by_key(|header| header.created);
    let first = first.cloned().unwrap_or_default();
    if headers.clone().any(|other| other.keys != first.keys || other.sample != first.sample) {
        let error = "files must have the same keys and the same sample to become one recording";
        return Err(CatError::Refused(anyhow!(error)));
    }
    let dictionary_bytes = headers.map(|header| header.dictionary_bytes).max().unwrap_or_default();
    Ok(Header { dictionary_bytes, ..first })
}

impl OpenRecording {
    fn new(file: &Path) -> Result<Self, CatError> {
        let input = TrafficInput::from_argument(file);
        let name = input.to_string();
        let opened = input.open().map_err(|error| CatError::Input(error.into()))?;
        let status = opened.status();
        let reader = Reader::new(opened.into_stream()).with_context(|| name.clone());
        let reader = reader.map_err(CatError::Input)?;
        Ok(Self { name, reader, status })
    }

    fn copy_to(mut self, output: &mut CatOutput) -> Result<(), CatError> {
        let mut lost = 0;
        let result = loop {
            let next = self.reader.next();
            output.lost(self.reader.lost() - lost)?;
            lost = self.reader.lost();
            match next {
                Ok(Some(arrival)) => {
                    let request = self.reader.dictionary().request(arrival.request);
                    let written = match output {
                        CatOutput::Lines(lines) => {
                            lines.write(arrival.at, request, arrival.was_refused)
                        }
                        CatOutput::Compact(writer) => {
                            writer.write(arrival.at, request, arrival.was_refused)
                        }
                    };
                    written.map_err(|error| CatError::Output(error.into()))?;
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let compressed = match self.status.end() {
            Some(InputEnd::Truncated) => Err(anyhow!("the compressed data is truncated")),
            Some(InputEnd::Corrupt { why }) => Err(why.into()),
            Some(InputEnd::Complete) | None => result.map_err(anyhow::Error::from),
        };
        compressed.with_context(|| self.name).map_err(CatError::Input)
    }
}

impl CatOutput {
    fn new(args: &CatArgs, header: &Header) -> Result<Self, CatError> {
        let is_terminal = args.output.is_none() && io::stdout().is_terminal();
        if args.compact && is_terminal {
            let error = "--compact must have -o, or standard output that is no terminal";
            return Err(CatError::Refused(anyhow!(error)));
        }
        let output: Box<dyn Write> = match &args.output {
            Some(path) => {
                let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
                let file = file.with_context(|| format!("-o {}", path.display()));
                Box::new(BufWriter::new(file.map_err(CatError::Output)?))
            }
            None if is_terminal => Box::new(PrintableLines(io::stdout().lock())),
            None => Box::new(BufWriter::new(io::stdout().lock())),
        };
        let created = if args.compact {
            Writer::new(output, header).map(Self::Compact)
        } else {
            JsonLinesWriter::new(output, header).map(Self::Lines)
        };
        created.map_err(|error| CatError::Output(error.into()))
    }

    fn lost(&mut self, count: u64) -> Result<(), CatError> {
        let written = match self {
            _ if count == 0 => Ok(()),
            Self::Lines(lines) => lines.write_lost(count),
            Self::Compact(writer) => writer.write_lost(count),
        };
        written.map_err(|error| CatError::Output(error.into()))
    }

    fn finish(self) -> Result<(), RecordingError> {
        match self {
            Self::Lines(lines) => lines.finish().map(drop),
            Self::Compact(writer) => writer.finish().map(drop),
        }
    }
}

/// Escapes what a terminal would obey. JSON is written in pieces that are whole characters.
struct PrintableLines<W>(W);

impl<W: Write> Write for PrintableLines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = str::from_utf8(bytes).map_err(io::Error::other)?;
        let (lines, end) = text.strip_suffix('\n').map_or((text, ""), |line| (line, "\n"));
        self.0.write_all(printable_json(lines).as_bytes())?;
        self.0.write_all(end.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
