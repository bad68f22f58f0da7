//! Tests of simulations through their public door.

mod numbers;

use rlaas_core::clock::Timestamp;
use rlaas_core::rules::RuleSet;
use rlaas_core::rules::spec::RulesSpec;
use serde_json::Value;

use super::{Simulation, SimulationReport, SimulationSettings};
use crate::request::{RecordedFields, RecordedRequest, TimedRequest};

/// Rules in the format of rules files.
fn rules(json: &Value) -> RuleSet {
    let spec: RulesSpec = serde_json::from_value(json.clone()).expect("rules");
    spec.build().expect("valid rules")
}

fn fields(user: &str, resource: &str, cost: u32) -> RecordedRequest {
    RecordedRequest::Fields(RecordedFields {
        user_id: user.into(),
        resource: resource.into(),
        cost,
        ..RecordedFields::default()
    })
}

fn at_millis(millis: u64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + millis)
}

/// Decides requests at times in milliseconds.
fn run(
    settings: SimulationSettings,
    requests: impl IntoIterator<Item = (u64, RecordedRequest)>,
) -> SimulationReport {
    let mut simulation = Simulation::new(settings);
    for (millis, request) in requests {
        simulation.decide(&TimedRequest { at: at_millis(millis), request, was_refused: false });
    }
    simulation.finish()
}
