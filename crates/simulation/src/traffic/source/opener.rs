//! Opens logs as the settings say.

use std::sync::Arc;

use super::defaults::{default_mappings, forwarded_field};
use super::log::LogSource;
use super::log_mapping::{LogMapping, SeenFields};
use crate::traffic::format::{LineParser, LogFormat, StampForm};
use crate::traffic::input::LineReader;
use crate::traffic::mapping::{Condition, FieldNames, MapName, Mapping, MappingError};
use crate::traffic::stamp::StampReader;
use crate::traffic::{StampedAt, TrafficError, TrafficSettings};

/// Opens logs of one format. The options are checked once, for all of them.
#[derive(Debug)]
pub(super) struct LogOpener {
    parser: LineParser,
    stamps: StampReader,
    mapping: Arc<LogMapping>,
    defaults: Vec<String>,
}

impl LogOpener {
    /// Checks the options of logs.
    ///
    /// # Errors
    ///
    /// [`TrafficError`] for the first one that can't be used.
    pub(super) fn new(
        format: &LogFormat,
        settings: &TrafficSettings,
    ) -> Result<Self, TrafficError> {
        let mut names = FieldNames::new(forwarded_field(format));
        let stamped_at = stamped_at(format, settings)?;
        let defaults = defaults(format, settings, stamped_at)?;
        let given = settings.mappings.iter().chain(&defaults).map(String::as_str);
        let mapping = Mapping::parse(given, &mut names)?;
        let not_mapped = |name| TrafficError::NotMapped { name, format: format.name() };
        if !mapping.request.has_identity() {
            return Err(not_mapped("user_id"));
        }
        let time = mapping.time.as_ref().ok_or_else(|| not_mapped("time"))?;
        let is_stamped_at_end = stamped_at == StampedAt::End;
        let is_corrected = mapping.duration.is_some() || settings.stamped_at.is_none();
        if is_stamped_at_end && !is_corrected {
            return Err(TrafficError::NoDuration);
        }
        let zone = settings.zone.as_deref().or_else(|| zone(format));
        let stamps = StampReader::new(time.format.clone(), zone)?;
        let condition = |text: &String| Condition::parse(text, &mut names);
        let conditions = settings.conditions.iter().map(condition).collect::<Result<_, _>>();
        let conditions = conditions.map_err(MappingError::Condition)?;
        let skip_statuses = settings.skip_statuses.clone();
        let parser = LineParser::new(format, names.names())?;
        let fields = SeenFields::new(names.names());
        let mapping = LogMapping { mapping, conditions, is_stamped_at_end, skip_statuses, fields };
        Ok(Self { parser, stamps, mapping: Arc::new(mapping), defaults })
    }

    /// Returns the mappings that follow from the format.
    pub(super) fn defaults(&self) -> &[String] {
        &self.defaults
    }

    /// Reads a log from its first line on.
    pub(super) fn open(&self, lines: LineReader) -> LogSource {
        let (parser, stamps) = (self.parser.clone(), self.stamps.clone());
        LogSource::new(lines, parser, stamps, Arc::clone(&self.mapping))
    }
}

/// Returns the point of a request that stamps show.
fn stamped_at(format: &LogFormat, settings: &TrafficSettings) -> Result<StampedAt, TrafficError> {
    let stamped_at = settings.stamped_at.or(format.known_fields().stamped_at);
    let is_duration = |text: &String| matches!(MapName::split(text), Ok((MapName::Duration, _)));
    match stamped_at {
        Some(StampedAt::End) => Ok(StampedAt::End),
        _ if settings.mappings.iter().any(is_duration) => Err(TrafficError::NoStamp),
        _ => Ok(StampedAt::Start),
    }
}

/// Returns the mappings of a format, for names that are not given and needed.
fn defaults(
    format: &LogFormat,
    settings: &TrafficSettings,
    stamped_at: StampedAt,
) -> Result<Vec<String>, MappingError> {
    let given = settings.mappings.iter().map(|text| MapName::split(text).map(|(name, _)| name));
    let given = given.collect::<Result<Vec<_>, _>>()?;
    let has_descriptors =
        given.iter().any(|name| matches!(name, MapName::Domain | MapName::Entry(..)));
    let is_needed = |name: &str| match name {
        "user_id" | "resource" if has_descriptors => false,
        "duration" if stamped_at == StampedAt::Start => false,
        _ => given.iter().all(|given| given.to_string() != name),
    };
    let defaults = default_mappings(format).into_iter().filter(|(name, _)| is_needed(name));
    Ok(defaults.map(|(name, expression)| format!("{name}={expression}")).collect())
}

/// Returns the zone of stamps that have none.
fn zone(format: &LogFormat) -> Option<&'static str> {
    let form = format.known_fields().time.as_ref()?.form;
    (form == StampForm::UtcDateTime).then_some("UTC")
}
