//! `rlaas check-config`: loads, validates, tells every problem and what is probably not meant.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::EXIT_CONFIG;
use crate::config::{Config, Effective, Sources, warnings};
use crate::rules::Rule;

#[derive(Args, Debug)]
pub(super) struct CheckConfigArgs {
    /// YAML files; later ones win
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// The files alone are checked: the environment of this shell is not that of the server.
pub(super) fn run(args: CheckConfigArgs) -> ExitCode {
    match Config::load(&Sources { files: args.files, ..Sources::default() }) {
        Ok(config) => {
            for warning in &config.notices {
                eprintln!("warning: {warning}");
            }
            let origins = origins(&config);
            for warning in warnings(&config.rules) {
                match origin(&origins, &config, warning.rule()) {
                    Some(origin) => eprintln!("warning: {origin}: {warning}"),
                    None => eprintln!("warning: {warning}"),
                }
            }
            println!("valid");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

/// Where a rule stands, or a descriptor that has none itself but rules below it.
fn origin<'a>(
    origins: &HashMap<&'a str, &'a str>,
    config: &'a Config,
    rule: &str,
) -> Option<&'a str> {
    let mut descriptors = config.rules.descriptors().iter();
    let below = || descriptors.find(|of| of.name.starts_with(rule)).map(|of| &*of.file);
    origins.get(rule).copied().or_else(below)
}

/// Where each rule stands, by its name.
fn origins(config: &Config) -> HashMap<&str, &str> {
    let is_name =
        |key: &str| key.strip_prefix("rules[").is_some_and(|rest| rest.ends_with("].name"));
    let named = config.effective.iter().filter(|of| is_name(&of.key));
    let named = named.map(|of| (of.value.as_str(), of.origin.as_str()));
    let is_set = |of: &&Effective| of.key.starts_with("rate-limiter.") && of.origin != "default";
    let default = config.effective.iter().filter(is_set);
    let default = default.map(|of| (Rule::DEFAULT, of.origin.as_str()));
    let descriptors = config.rules.descriptors().iter();
    let descriptors = descriptors.map(|of| (&*of.name, &*of.file));
    named.chain(default).chain(descriptors).collect()
}
