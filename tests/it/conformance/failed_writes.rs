//! Redis refuses one write of a step. If it is the first, nothing changes. If it is a later one,
//! the earlier writes stay, and the error reports a partial result.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::{cases, per};
use rlaas::algorithm::{Algorithm, Cost, Limit, TakenUnits};
use rlaas::clock::Micros;
use rlaas::plan::Plan;
use rlaas::rules::{Rule, RuleSet};
use rlaas::store::{Action, Coupling, Reply, StoreError, StoreHit};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::rules;
use rlaas_testkit::service::Service;

const MINUTE: Micros = Micros::from_secs(60);

/// The commands by which scripts write.
const WRITES: [&str; 7] =
    ["SET", "DEL", "INCRBY", "ZADD", "ZREMRANGEBYSCORE", "ZREMRANGEBYRANK", "PEXPIREAT"];

#[derive(Clone, Copy, Debug)]
enum HitKind {
    Take(u32),
    Report(u32),
    Credit(u32),
    /// Refunds the first hit of the scenario.
    Refund,
    Reset,
}

/// Hits, each with the user it is for.
type ScenarioHits = &'static [(&'static str, HitKind)];

#[derive(Debug)]
struct Scenario {
    name: &'static str,
    /// Whether the limit allows a debt of 10 units.
    keeps_debt: bool,
    /// Executed before the step, one after the other.
    before: ScenarioHits,
    /// The step under test.
    hits: ScenarioHits,
}

const SCENARIOS: [Scenario; 12] = {
    use HitKind::{Credit, Refund, Report, Reset, Take};
    const fn plain(name: &'static str, before: ScenarioHits, hits: ScenarioHits) -> Scenario {
        Scenario { name, keeps_debt: false, before, hits }
    }
    const fn owing(name: &'static str, before: ScenarioHits, hits: ScenarioHits) -> Scenario {
        Scenario { name, keeps_debt: true, before, hits }
    }
    const TAKEN: ScenarioHits = &[("alice", Take(3)), ("alice", Take(2))];
    [
        plain("a first unit", &[], &[("alice", Take(1))]),
        plain("one more unit", TAKEN, &[("alice", Take(1))]),
        plain("several units", TAKEN, &[("alice", Take(4))]),
        plain("several hits", TAKEN, &[("alice", Take(2)), ("bob", Take(1)), ("carol", Take(3))]),
        plain("a refund", TAKEN, &[("alice", Refund)]),
        plain("a refund of all", &[("alice", Take(3))], &[("alice", Refund)]),
        plain("a refund beside a take", TAKEN, &[("alice", Refund), ("bob", Take(2))]),
        plain("a credit", TAKEN, &[("alice", Credit(1))]),
        plain("a reset", TAKEN, &[("alice", Reset)]),
        owing("a debt", TAKEN, &[("alice", Report(12))]),
        owing("a debt that is reset", &[("alice", Report(15))], &[("alice", Reset)]),
        owing(
            "everything",
            &[("alice", Take(3)), ("bob", Report(12)), ("carol", Take(4))],
            &[("bob", Reset), ("carol", Report(9)), ("dave", Take(2)), ("alice", Refund)],
        ),
    ]
};

/// A command of a script, with its arguments.
type Command = Vec<String>;

/// Runs scenarios on one redis-server.
struct ScenarioRunner {
    server: Arc<RedisServer>,
    algorithm: Algorithm,
}

impl ScenarioRunner {
    fn rules(&self, scenario: &Scenario) -> RuleSet {
        let limit = Limit::new(10, MINUTE).expect("a valid limit");
        if !scenario.keeps_debt {
            return rules(self.algorithm, 10, MINUTE);
        }
        let limit = limit.with_max_debt(10).expect("a valid debt");
        RuleSet::new(Rule::new_default(self.algorithm, limit), Vec::new())
    }

    /// Empties the server and executes `before`; returns a service and what it has taken.
    async fn prepare(&self, scenario: &Scenario) -> (Service, Vec<TakenUnits>) {
        self.server.query::<()>(&["FLUSHALL"]);
        // A new service each time, because refusals open the breaker.
        let on = Service::on_redis(self.rules(scenario), Arc::clone(&self.server));
        let mut taken = Vec::new();
        for hit in scenario.before {
            let reply = execute(&on, &[*hit], &taken).await.expect("a reply");
            let decision = reply.hits[0].decision;
            let cost = Cost::new(u32::try_from(reply.hits[0].taken).expect("a cost"));
            taken.push(TakenUnits { cost, at: decision.at, reset_after: decision.reset_after });
        }
        on.at(0.25);
        (on, taken)
    }

    /// Executes the step without a refusal, and returns its writes.
    async fn run_unrefused(&self, scenario: &Scenario) -> Vec<Command> {
        let (on, taken) = self.prepare(scenario).await;
        let mut monitor = Monitor::start(&self.server);
        execute(&on, scenario.hits, &taken).await.expect("a reply");
        self.server.query::<()>(&["ECHO", "the end"]);
        monitor.writes_until("the end")
    }

    /// Returns every key with its value and its time to live. Of logs it returns the scores,
    /// because members are unique to each call.
    fn contents(&self) -> Vec<(String, String, i64)> {
        let content = |key: String| {
            let value = match &*self.server.query::<String>(&["TYPE", &key]) {
                "zset" => {
                    let entries: Vec<(String, u64)> =
                        self.server.query(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]);
                    let scores: Vec<u64> = entries.into_iter().map(|(_, score)| score).collect();
                    format!("{scores:?}")
                }
                _ => self.server.query(&["GET", &key]),
            };
            let lives = self.server.query(&["PTTL", &key]);
            (key, value, lives)
        };
        self.server.keys().into_iter().map(content).collect()
    }

    /// Makes Redis refuse the last of these commands and none of those before it.
    fn refuse(&self, writes: &[Command]) {
        let (refused, earlier) = writes.split_last().expect("a write");
        let mut acl = vec!["ACL".into(), "SETUSER".into(), "default".into()];
        acl.push(format!("-{}", refused[0].to_lowercase()));
        for command in earlier.iter().filter(|command| command[0] == refused[0]) {
            assert_ne!(command[1], refused[1], "Redis can't tell these apart");
            // Allowed with this first argument.
            acl.push(format!("+{}|{}", refused[0].to_lowercase(), command[1]));
        }
        self.server.query::<()>(&acl.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn allow_all(&self) {
        self.server.query::<()>(&["ACL", "SETUSER", "default", "+@all", "allkeys"]);
    }

    /// Executes the step while the last of these writes is refused; returns its result and the
    /// contents of Redis.
    async fn run_refused(
        &self,
        scenario: &Scenario,
        writes: &[Command],
    ) -> (Result<Reply, StoreError>, Vec<(String, String, i64)>) {
        let (on, taken) = self.prepare(scenario).await;
        self.refuse(writes);
        let result = execute(&on, scenario.hits, &taken).await;
        self.allow_all();
        (result, self.contents())
    }

    /// Returns the contents of Redis after `before` and these writes.
    async fn after(&self, scenario: &Scenario, writes: &[Command]) -> Vec<(String, String, i64)> {
        let _prepared = self.prepare(scenario).await;
        for command in writes {
            self.server.query::<()>(&command.iter().map(String::as_str).collect::<Vec<_>>());
        }
        self.contents()
    }
}

async fn execute(
    on: &Service,
    hits: &[(&str, HitKind)],
    taken: &[TakenUnits],
) -> Result<Reply, StoreError> {
    let plans: Vec<Plan> = hits.iter().map(|(user, _)| on.plan(user, 1)).collect();
    let hits = plans.iter().zip(hits).map(|(plan, (_, kind))| {
        let action = match *kind {
            HitKind::Take(units) => Action::Take(Cost::new(units)),
            HitKind::Report(units) => Action::Report(Cost::new(units)),
            HitKind::Credit(units) => Action::Credit(Cost::new(units)),
            HitKind::Refund => Action::Refund(taken[0]),
            HitKind::Reset => Action::Reset,
        };
        StoreHit { action, ..plan.hits[0].for_store().expect("a rule with a limit") }
    });
    on.try_execute(&hits.collect::<Vec<_>>(), Coupling::AllOrNothing).await
}

/// A connection that reads every command which a server runs, by MONITOR.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        stream.write_all(b"MONITOR\r\n").expect("a connection");
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an open connection");
        line.trim_end().to_owned()
    }

    /// Returns the writes of scripts until `ECHO end`.
    fn writes_until(&mut self, end: &str) -> Vec<Command> {
        let mut writes = Vec::new();
        loop {
            let line = self.line();
            let (caller, words) = line.split_once("] ").expect("a command");
            let words = words.trim_matches('"').split("\" \"").map(str::to_owned);
            let command: Command = words.collect();
            if command[1..] == [end] {
                return writes;
            }
            if caller.ends_with(" lua") && WRITES.contains(&&*command[0]) {
                writes.push(command);
            }
        }
    }
}

cases! {
    all, redis;
    failed_write_leaves_the_earlier_ones: per(10, MINUTE);
    forbidden_key_fails_the_call_without_a_write: per(10, MINUTE);
}

async fn failed_write_leaves_the_earlier_ones(on: Service) {
    let server = Arc::clone(on.redis().expect("a service on Redis"));
    let runner = ScenarioRunner { server, algorithm: on.algorithm() };
    for scenario in &SCENARIOS {
        let writes = runner.run_unrefused(scenario).await;
        let name = scenario.name;
        assert!(!writes.is_empty(), "{name}");
        for before in 0..writes.len() {
            let context = format!("{name}: number {before} fails of {writes:?}");
            let stands = runner.after(scenario, &writes[..before]).await;
            let (result, contents) = runner.run_refused(scenario, &writes[..=before]).await;
            let error = result.expect_err(&context);
            assert_eq!(contents, stands, "{context}");
            assert_eq!(error.kind(), "noperm", "{context}: {error:?}");
            assert_eq!(error.is_ambiguous(), before > 0, "{context}: {error:?}");
            let is_partial = matches!(error, StoreError::Partial { .. });
            assert_eq!(is_partial, before > 0, "{context}: {error:?}");
        }
    }
}

async fn forbidden_key_fails_the_call_without_a_write(on: Service) {
    let server = Arc::clone(on.redis().expect("a service on Redis"));
    let runner = ScenarioRunner { server, algorithm: on.algorithm() };
    for scenario in &SCENARIOS {
        let writes = runner.run_unrefused(scenario).await;
        let key = writes.last().expect("a write")[1].clone();
        let untouched = runner.after(scenario, &[]).await;
        let (on, taken) = runner.prepare(scenario).await;
        let mut acl = vec!["ACL", "SETUSER", "default", "resetkeys", "%R~*"];
        let others: Vec<String> = writes
            .iter()
            .filter(|write| write[1] != key)
            .map(|write| format!("~{}", write[1]))
            .collect();
        acl.extend(others.iter().map(String::as_str));
        runner.server.query::<()>(&acl);
        let error = execute(&on, scenario.hits, &taken).await.expect_err(scenario.name);
        runner.allow_all();
        assert_eq!(runner.contents(), untouched, "{}", scenario.name);
        let is_refused = matches!(&error, StoreError::Refused { code, .. } if code == "NOPERM");
        assert!(is_refused, "{}: {error:?}", scenario.name);
    }
}
