//! Rate limiting as a service: may this request pass?
//!
//! `rlaas` answers over gRPC and HTTP. It keeps its counters in memory, or in Redis, where any number
//! of instances share them. This page is the map of the code: its words, its layers, the path of a
//! request, and the invariants.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | rule | matcher + key + limit + algorithm + policies, from configuration |
//! | limit, burst, window, cost | how many; how many at once; per how long; units of one request |
//! | key | rule + matched values: names one piece of state |
//! | hit | one key + rule + action, ready for a store |
//! | action | what a store does with a hit: take, peek, report, refund, credit, reset |
//! | coupling | how the hits of a request depend on each other: all or nothing, each alone |
//! | plan | the hits of a request and how their decisions combine; built from the rules without I/O |
//! | decision | outcome of one hit: allowed, remaining, `retry_after`, `reset_after` |
//! | verdict | outcome of the request, folded from its decisions |
//! | receipt | the units that a hit took; a refund consumes it |
//! | store | where state lives: memory, redis |
//! | shard | the location of a key's state: hits of one shard are decided in one atomic step |
//! | shadow | a rule that is evaluated and counted, never enforced |
//! | quota | a rule that denies a request only together with all other quotas of that request |
//! | descriptor | a list of keys and values in a request from Envoy; it matches at most one rule |
//! | degraded | decided by the rule's failure policy, because the store did not answer |
//! | node | one Redis server: it has a circuit breaker and a health monitor, and per worker a batcher and a pool |
//! | batch | requests that wait for the same node, sent as one script call for each slot |
//!
//! # Layers
//!
//! Each layer may use those above it in the table. Between crates Cargo enforces this, inside the
//! service a test does. For example, the health service reaches the store through the limiter.
//!
//! | crate, module | does |
//! | --- | --- |
//! | [`rlaas_core`] | clock, algorithms, rules, plans, verdicts: pure. No async, no I/O; serde by feature |
//! | [`rlaas_limiter`] | [`rlaas_limiter::Limiter`]: executes plans; memory store, Redis store by feature, deny cache, [`observer`] |
//! | [`rlaas_simulation`] | recorded traffic: access logs and recordings; rules that are tried on it |
//! | [`rlaas_proto`] | messages and services of all protocols, compiled once |
//! | [`rlaas_client`] | client library: deadlines, a policy for calls without a response, a cache of denials; the load generator |
//! | `json_messages` | messages in the JSON mapping of protobuf |
//! | `proto_values` | numbers, times and algorithms as messages of all protocols have them |
//! | `rule_messages` | rules as messages, and as the specifications that files have |
//! | [`telemetry`] | the declaration of every metric; logs; traces |
//! | [`projects`] | tenants: their API keys; what is stored of them, and how it changes |
//! | [`usage`] | requests and units of projects by day, over all instances |
//! | [`admin`] | administration of keys: one operation for all protocols |
//! | [`api`] | protocol adapters: bytes → request, verdict → bytes. None of them makes a decision |
//! | [`console`] | pages for people: the same operations as `api`, in a browser |
//! | [`server`] | bind → serve → drain; workers; connections and their limits; health |
//! | [`config`] | files, environment and arguments → validated settings; detection of changed files |
//! | [`cli`] | one file or folder for each command; `serve` assembles the parts |
//!
//! # A Check
//!
//! Every protocol and the library use one pipeline:
//!
//! `CheckRequest` → [`rules::Request`] → [`plan::Plan`] → [`operation::StoreRequest`] →
//! [`operation::Reply`] → [`algorithm::Decision`] → [`verdict::Verdict`] → `CheckResponse`
//!
//! 1. `api` parses bytes into a request, or fails with `INVALID_ARGUMENT`.
//! 2. The plan (core, pure) turns the rules in force into hits, and says how their decisions combine.
//!    A plan owns its keys and refers to rules by position, so it can be sent to a task.
//! 3. The limiter executes the plan. The memory store decides at once. With Redis the deny cache is
//!    looked up first; then the store decides in one step for each shard, within the caller's
//!    deadline and if the node's circuit breaker is closed. Several shards are decided one after the
//!    other; if a later one denies, the units of the earlier ones are refunded. If the store fails,
//!    the rule's failure policy decides.
//! 4. The fold (core, pure) combines the decisions into a verdict. A denied rule refuses the request
//!    as [`rules::Mode::refuse`] says; for the hits of one script call `is_refused` in
//!    `lua/coupled.lua` says the same.
//! 5. `api` turns the verdict into a response. For `ratelimit.v1`, HTTP and the command line the
//!    mapping is `response.rs`; Envoy's protocol has its own in `api/envoy`.
//!
//! [`rlaas_limiter::Limiter`] is the only caller of the plan and the store: flat rules enter it
//! through `check` or `begin`, Envoy's descriptors through `check_descriptors`.
//!
//! # Invariants
//!
//! - **All or nothing.** Every hit is decided first; units are taken only if all hits allow. There
//!   are two exceptions: a full fixed window goes on counting attempts, and with
//!   `envoy.count-refused` each descriptor counts by itself.
//! - **Integers only**, in microseconds and units. Fractions of a unit are kept. Lua divides products
//!   above 2^53 digit by digit, so every rate is exact to the microsecond.
//! - **One clock for each store**: the Redis server's, or one that follows this machine's wall clock.
//!   If a clock steps back by up to a window, its last value is held ([`clock::Timestamp::hold`]). If
//!   it steps back further, it is followed; this costs at most one extra refill.
//! - **Tests move time**, they do not wait: with a [`clock::ManualClock`] in memory, and by changing
//!   the clock of a real redis-server, because the scripts use the server's time alone.
//! - **Each Redis server has its own circuit breaker**, in `store/redis`: in a cluster the limiter
//!   does not know which server holds a key. The limiter applies the failure policies.
//! - **No call is repeated if its outcome is unknown**, unless it has a request id. Otherwise a unit
//!   could be taken twice.
//! - **Everything has a limit**: keys, lengths, body size, streams, queues and waits. A connection may
//!   also do only so much work before it yields, so a flood does not delay the other connections
//!   of its thread.

pub use rlaas_core::{algorithm, clock, control, operation, plan, rules, verdict};
pub use rlaas_limiter::{observer, store};

pub mod admin;
pub mod api;
pub mod cli;
pub mod config;
pub mod console;
mod json_messages;
pub mod projects;
mod proto_values;
mod rule_messages;
pub mod server;
pub mod telemetry;
pub mod usage;
