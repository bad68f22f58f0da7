//! Rules for recordings with hashed values, and remarks on what a recording does not have.

use std::path::Path;

use anyhow::Context;
use rlaas_simulation::recording::{Header, rules_for_recordings};
use rlaas_simulation::simulation::{SimulationSettings, recording_notes};

use crate::config::hasher_of_file;

/// Hashes the texts of the rules as recordings with these headers are, and leaves out rules that they
/// can't decide. Returns the remarks on it.
///
/// # Errors
///
/// If the key file can't be read, or the recordings were hashed by another key.
pub(super) fn apply(
    key_file: Option<&Path>,
    headers: &[Header],
    settings: &mut SimulationSettings,
) -> anyhow::Result<Vec<String>> {
    let key = key_file.map(hasher_of_file).transpose().context("--key-file")?;
    let found = rules_for_recordings(&settings.candidate, headers, key.as_ref())?;
    let mut undecidable = found.undecidable;
    settings.candidate = found.rules;
    if let Some(against) = &mut settings.against {
        let found = rules_for_recordings(against, headers, key.as_ref())?;
        *against = found.rules;
        for rule in found.undecidable {
            if !undecidable.contains(&rule) {
                undecidable.push(rule);
            }
        }
    }
    Ok(recording_notes(headers, &settings.candidate, &undecidable))
}
