//! Random rules, ids, costs and time steps on memory, Redis and the reference model: all decisions
//! are equal in every field. A failure is reduced to the smallest case and saved beside this file,
//! in a file for each test.
//!
//! `DIFFERENTIAL_CASES` sets the number of cases. The default makes more than 100,000 decisions on
//! each store.

mod budgets;
mod cases;
mod changes;
mod grants;
mod hold_shares;
mod ids;
mod kept_limits;
pub(crate) mod model;
mod own_limits;
mod remembered;
mod simulated;
mod stores;
mod trio;

use std::cell::Cell;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseResult, TestRunner};
use rlaas::algorithm::{Algorithm, OnChange};
use rlaas_testkit::redis::RedisServer;
use tokio::runtime::Builder;

use cases::{
    DifferentialCase, Rules, case, case_of_many, with_admin, with_overrides, with_refunds,
};
use changes::{ChangeCase, TwoInstances, case_of_changes, case_of_two_instances};
use ids::{IdCase, case_of_ids};
use stores::StorePair;

/// Checks that the cases of a test have made as many decisions as they must: a test that decides
/// nothing would pass.
fn assert_decided(decisions: usize, floor: usize) {
    eprintln!("{decisions} decisions on each store");
    let is_default = std::env::var_os("DIFFERENTIAL_CASES").is_none();
    assert!(decisions >= floor || !is_default, "only {decisions} decisions");
}

/// Runs the cases, and returns the number of decisions on each store.
fn run(name: &str, case: impl Strategy<Value = DifferentialCase>, default_cases: u32) -> usize {
    let decisions = Cell::new(0);
    run_cases(
        name,
        case,
        default_cases,
        &async |case: DifferentialCase, server: &Arc<RedisServer>| {
            let mut stores = StorePair::new(&case, server);
            for step in &case.steps {
                decisions.set(decisions.get() + stores.take(step).await?);
            }
            Ok(())
        },
    );
    decisions.get()
}

/// Runs the cases by `run_case`, on one redis-server.
fn run_cases<C: std::fmt::Debug>(
    name: &str,
    case: impl Strategy<Value = C>,
    default_cases: u32,
    run_case: &impl AsyncFn(C, &Arc<RedisServer>) -> TestCaseResult,
) {
    let cases = std::env::var("DIFFERENTIAL_CASES").ok().and_then(|text| text.parse().ok());
    let saved: &'static str =
        Box::leak(format!("tests/it/differential/{name}.txt").into_boxed_str());
    let config = Config {
        cases: cases.unwrap_or(default_cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(saved))),
        max_shrink_iters: 3_000,
        ..Config::default()
    };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = Arc::new(RedisServer::start());
    let try_case = |case: C| runtime.block_on(run_case(case, &server));
    if let Err(failure) = TestRunner::new(config).run(&case, try_case) {
        panic!("{failure}");
    }
}

#[test]
fn stores_agree_with_the_reference_model() {
    let decisions = run("stay", case(Rules::Stay), 1_100);
    assert_decided(decisions, 100_000);
}

#[test]
fn stores_agree_when_rules_change() {
    let decisions = run("change", case(Rules::Change), 300);
    assert_decided(decisions, 15_000);
}

#[test]
fn stores_agree_on_refunds() {
    let case =
        prop_oneof![with_refunds(case(Rules::Stay)), with_refunds(case_of_many(Rules::Stay))];
    let decisions = run("refunds", case, 300);
    assert_decided(decisions, 8_000);
}

#[test]
fn stores_agree_on_requests_with_many_rules() {
    let decisions = run("many", case_of_many(Rules::Stay), 300);
    assert_decided(decisions, 7_000);
}

#[test]
fn stores_agree_on_request_ids() {
    let requests = Cell::new(0);
    run_cases("ids", case_of_ids(), 300, &async |case: IdCase, server: &Arc<RedisServer>| {
        requests.set(requests.get() + case.len());
        case.run(server).await
    });
    assert_decided(requests.get(), 9_000);
}

#[test]
fn stores_agree_when_an_administrator_changes_keys() {
    let with_refunds = with_refunds(with_admin(case(Rules::Stay)));
    let many = with_admin(case_of_many(Rules::Stay));
    let decisions =
        run("admin", prop_oneof![with_admin(case(Rules::Stay)), with_refunds, many], 300);
    assert_decided(decisions, 10_000);
}

#[test]
fn stores_agree_on_overrides_and_bans() {
    let many = with_overrides(case_of_many(Rules::Overridable));
    let case = prop_oneof![3 => with_overrides(case(Rules::Overridable)), 1 => many];
    let decisions = run("overrides", case, 100);
    assert_decided(decisions, 4_000);
}

#[test]
fn shares_of_holds_are_those_of_the_model() {
    let cut = Cell::new(0);
    let case = hold_shares::case_of_hold_shares();
    run_cases(
        "hold_shares",
        case,
        150,
        &async |case: hold_shares::HoldCase, server: &Arc<RedisServer>| {
            cut.set(cut.get() + hold_shares::run(case, server).await?);
            Ok(())
        },
    );
    eprintln!("{} reservations held less than their cost", cut.get());
    assert!(cut.get() >= 150 || std::env::var_os("DIFFERENTIAL_CASES").is_some());
}

#[test]
fn limits_of_requests_are_those_of_the_model() {
    let own = Cell::new(0);
    run_cases("own_limits", own_limits::case_of_one(), 300, &async |case, server| {
        own.set(own.get() + own_limits::run(case, server).await?);
        Ok(())
    });
    assert_decided(own.get(), 1_000);
}

#[test]
fn limits_of_requests_hold_as_overrides_do() {
    let own = Cell::new(0);
    run_cases("own_limits_held", own_limits::case_of_reservations(), 300, &async |case, server| {
        own.set(own.get() + own_limits::run_with_reservations(case, server).await?);
        Ok(())
    });
    assert_decided(own.get(), 100);
}

#[test]
fn requests_take_what_is_there_in_one_step() {
    let cut = Cell::new(0);
    let case = budgets::case_of_budgets();
    run_cases("budgets", case, 200, &async |case: budgets::BudgetCase, server| {
        cut.set(cut.get() + budgets::run(case, server).await?);
        Ok(())
    });
    eprintln!("{} requests took less than their cost", cut.get());
    assert!(cut.get() >= 200 || std::env::var_os("DIFFERENTIAL_CASES").is_some());
}

#[test]
fn remembered_denials_are_those_of_the_store() {
    let hits = Cell::new(0);
    let case = remembered::case_of_remembered();
    run_cases("remembered", case, 200, &async |case: remembered::RememberedCase, server| {
        hits.set(hits.get() + remembered::run(case, server).await?);
        Ok(())
    });
    eprintln!("{} denials were remembered", hits.get());
    assert!(hits.get() >= 50 || std::env::var_os("DIFFERENTIAL_CASES").is_some());
}

/// Histories for each algorithm and policy, and for each test of changes.
fn histories() -> u32 {
    if std::env::var_os("SOAK").is_some() { 500 } else { 100 }
}

/// Runs the histories of each policy.
fn run_changes(algorithm: Algorithm, at_first_use: bool) {
    let decisions = Cell::new(0);
    for policy in OnChange::ALL {
        let case = prop_oneof![
            4 => case_of_changes(algorithm, at_first_use, policy, false),
            1 => case_of_changes(algorithm, at_first_use, policy, true),
        ];
        run_cases("limits", case, histories(), &async |case: ChangeCase, server| {
            decisions.set(decisions.get() + case.run(server).await?);
            Ok(())
        });
    }
    assert_decided(decisions.get(), 2_000);
}

#[test]
fn two_instances_pass_no_more_than_the_larger_limit() {
    let requests = Cell::new(0);
    run_cases(
        "instances",
        case_of_two_instances(),
        2 * histories(),
        &async |case: TwoInstances, server| {
            requests.set(requests.get() + case.len());
            case.run(server).await
        },
    );
    assert_decided(requests.get(), 1_000);
}

macro_rules! of_each_algorithm {
    ([$($algorithm:ident)+]) => {
        mod changed_limit_has_the_units_of_the_policy {
            $(#[test]
            fn $algorithm() {
                super::run_changes(super::algorithm(stringify!($algorithm)), false);
            })+

            #[test]
            fn window_from_the_first_use() {
                super::run_changes(super::Algorithm::FixedWindow, true);
            }
        }
    };
}

rlaas_limiter::with_algorithms! { all [of_each_algorithm] [] [] }

fn algorithm(name: &str) -> Algorithm {
    Algorithm::from_name(name).expect("an algorithm of the registry")
}
