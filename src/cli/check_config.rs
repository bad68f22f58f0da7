//! `rlaas check-config`: validates configuration files, and warns of likely mistakes.

use std::collections::HashMap;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use rlaas_auth::ProjectId;

use super::EXIT_CONFIG;
use crate::config::{Config, Effective, Sources, warnings};
use crate::rules::{Rule, RuleSet, Unmatched};
use crate::server::ListenAddress;

#[derive(Args, Debug)]
pub(super) struct CheckConfigArgs {
    /// YAML files: later settings win, rules add up
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also read the environment, as the server does
    #[arg(long)]
    environment: bool,
}

/// Checks the files alone by default: the environment of a shell is not the server's.
pub(super) fn run(args: CheckConfigArgs) -> ExitCode {
    let mut sources = Sources::with_environment(args.files, Vec::new());
    if !args.environment {
        sources.environment.clear();
    }
    match Config::load(&sources) {
        Ok(config) => {
            warn(&config);
            warn_about_machine(&config);
            println!("valid");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

/// Prints the warnings about a configuration on standard error.
pub(super) fn warn(config: &Config) {
    for warning in &config.notices {
        eprintln!("warning: {warning}");
    }
    let origins = origins(config);
    for warning in warnings(&config.rules) {
        match origin(&origins, config, warning.rule()) {
            Some(origin) => eprintln!("warning: {origin}: {warning}"),
            None => eprintln!("warning: {warning}"),
        }
    }
}

/// Warns of what a server with this configuration could not use on this machine, now.
fn warn_about_machine(config: &Config) {
    let server = &config.server;
    for (setting, addresses) in [("server.listen", &server.listen), ("server.http", &server.http)] {
        for address in addresses {
            if let ListenAddress::Tcp(text) = address
                && let Err(error) = TcpListener::bind(text)
            {
                eprintln!("warning: {setting}: can't listen on {address}: {error}");
            }
        }
    }
    let Some(folder) = &config.state_dir else { return };
    let missing =
        folder.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    // The first folder that would be created is, and is removed again.
    if let Some(first) = missing.last()
        && let Err(error) = fs::create_dir(first).and_then(|()| fs::remove_dir(first))
    {
        eprintln!("warning: state-dir: can't create {}: {error}", folder.display());
    }
}

/// Returns the rules for requests of a project: those of files that name it, or else those of the
/// configuration. Warns of the other projects of files, whose rules are left out.
pub(super) fn rules_of_project(config: Config, project: &str) -> RuleSet {
    let hashed = config.rules.hashed_parts().cloned();
    warn_left_out(&config, project);
    let mut of_files = config.projects.into_iter();
    let Some((_, file)) = of_files.find(|(id, _)| id.as_str() == project) else {
        return config.rules;
    };
    let rules = RuleSet::clone(&file.rules);
    let rules = rules.with_unmatched(file.unmatched.unwrap_or(Unmatched::Deny));
    match hashed {
        Some(hashed) => rules.with_hashed_parts(hashed),
        None => rules,
    }
}

/// Warns that the rules of files for projects other than this one are left out.
pub(super) fn warn_left_out(config: &Config, project: &str) {
    let ids = config.projects.keys().map(ProjectId::as_str).filter(|id| *id != project);
    let ids: Vec<_> = ids.collect();
    if !ids.is_empty() {
        eprintln!("warning: rules of files for projects are left out: {}", ids.join(", "));
    }
}

/// Returns the file of a rule. For a descriptor without a rule, that of a rule below it.
fn origin<'a>(
    origins: &HashMap<&'a str, &'a str>,
    config: &'a Config,
    rule: &str,
) -> Option<&'a str> {
    let mut descriptors = config.rules.descriptors().iter();
    let below = || descriptors.find(|below| below.name.starts_with(rule)).map(|below| &*below.file);
    origins.get(rule).copied().or_else(below)
}

/// Returns the file of each rule by the name of the rule.
fn origins(config: &Config) -> HashMap<&str, &str> {
    let is_name =
        |key: &str| key.strip_prefix("rules[").is_some_and(|rest| rest.ends_with("].name"));
    let named = config.effective.iter().filter(|setting| is_name(&setting.key));
    let named = named.map(|setting| (setting.value.as_str(), setting.origin.as_str()));
    let is_set = |setting: &&Effective| {
        setting.key.starts_with("rate-limiter.") && setting.origin != "default"
    };
    let default = config.effective.iter().filter(is_set);
    let default = default.map(|setting| (Rule::DEFAULT, setting.origin.as_str()));
    let descriptors = config.rules.descriptors().iter();
    let descriptors = descriptors.map(|rule| (&*rule.name, &*rule.file));
    named.chain(default).chain(descriptors).collect()
}
