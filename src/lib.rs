//! Rate limiting as a service: may this request pass?
//!
//! `rlaas` answers over gRPC and HTTP. It keeps its counters in memory, or in Redis, so that any
//! number of instances share one truth. This page is the map of the code: where a line lives, what it
//! may touch, and how a request flows.
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
//! | plan | the hits of a request and how their decisions combine; pure, made by the rules |
//! | decision | outcome of one hit: allowed, remaining, `retry_after`, `reset_after` |
//! | verdict | outcome of the request, folded from its decisions |
//! | receipt | what a hit has taken, to be given back once |
//! | store | where state lives: memory, redis |
//! | shard | where a key's state is: hits of one shard are decided in one atomic step |
//! | shadow | a rule that is evaluated and counted, never enforced |
//! | quota | one of several rules of a request, which is refused if all of them deny |
//! | descriptor | keys and values by which a mesh asks; each meets at most one rule |
//! | degraded | a verdict made by policy because the store did not answer |
//! | node | one Redis server, with a breaker, a monitor, and a batcher and pool for each worker |
//! | batch | requests that wait for a node together, sent as one script call for each slot |
//!
//! # Layers
//!
//! Cargo keeps those between crates; inside the service each module may use those above it. Nothing
//! calls up: health asks the store through the limiter.
//!
//! | crate, module | does |
//! | --- | --- |
//! | [`rlaas_core`] | clock, algorithms, rules, plans, verdicts: pure. No async, no I/O; serde by feature |
//! | [`rlaas_limiter`] | [`rlaas_limiter::Limiter`]: executes plans; memory store, Redis store by feature, deny cache, [`observer`] |
//! | [`rlaas_proto`] | messages and services of all protocols, compiled once |
//! | [`rlaas_client`] | what callers embed: deadlines, a policy for no answer, refusals remembered; the load generator |
//! | [`telemetry`] | every metric declared once; logs; traces |
//! | [`api`] | thin adapters: bytes ↔ request and verdict. None asks which store decides |
//! | [`server`] | bind → serve → drain; workers; connections and their limits; health |
//! | [`config`] | figment → settings that are valid; what changed |
//! | [`cli`] | one file or folder for each command; `serve` puts the parts together |
//!
//! # A Check
//!
//! Four forms in, four out, and one pipeline for gRPC, batch, stream, HTTP, Envoy and library:
//!
//! `CheckRequest` → [`rules::Request`] → [`plan::Plan`] → [`operation::StoreRequest`] →
//! [`operation::Reply`] → [`algorithm::Decision`] → [`verdict::Verdict`] → `CheckResponse`
//!
//! 1. `api`: bytes → request, or `INVALID_ARGUMENT`.
//! 2. plan (core, pure): rules in force → hits, and how they combine. A plan owns its keys and names
//!    rules by position, so that it can be handed to a task.
//! 3. execute (limiter): memory answers in place; else the deny cache, then one step of the store for
//!    each shard, before the caller's deadline and if the breaker of the node lets it through. Several
//!    shards: one after the other, refunding what a later one denies. A failure of the store is
//!    judged by the rule's policy.
//! 4. fold (core, pure): decisions → verdict. [`rules::Mode::refuse`] alone says what refuses a
//!    request, and `is_refused` in `lua/coupled.lua` for the hits of one step.
//! 5. `api`: verdict → response: `response.rs`, of which gRPC, JSON and the command line are forms.
//!
//! # What holds everywhere
//!
//! - **All or nothing.** Every hit is decided first; units are taken only if all allow. The
//!   exceptions: a fixed window that is full goes on counting attempts, and `envoy.count-refused`
//!   has each descriptor count by itself.
//! - **Integers only**, in microseconds and units. Parts of a unit are kept; products above 2^53 are
//!   divided digit by digit in Lua, so that no rate needs a coarser unit than the microsecond.
//! - **One clock for each store**: Redis' own, or one that follows this machine's wall time. A clock
//!   that steps back by up to a window is held ([`clock::Timestamp::hold`]); one that jumps further
//!   back is followed, which costs at most one extra refill.
//! - **Tests move time** by a [`clock::ManualClock`] in memory, and by moving the clock of a real
//!   redis-server: the scripts know no other time than that of the server.
//! - **The breaker is where the servers are**, one for each, in `store/redis`: in a cluster the
//!   limiter does not know which of them a key is on. What it lets fail is the limiter's to judge.
//! - **Never twice.** A store call whose fate is unknown is not repeated.
//! - **Everything has a limit**: keys, lengths, body size, streams, queues, waits, and the turn of a
//!   connection: a flood holds up nobody else on its thread.

pub use rlaas_core::{algorithm, clock, operation, plan, rules, verdict};
pub use rlaas_limiter::{observer, store};

pub mod api;
pub mod cli;
pub mod config;
pub mod server;
pub mod telemetry;
