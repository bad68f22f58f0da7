//! Rate limiting as a service: may this request pass?
//!
//! `rlaas` answers over gRPC and HTTP. It keeps its counters in memory, or in Redis, so that any
//! number of instances share one truth. This page is the map of the house: where a line of code
//! lives, what it may touch, and how a request flows.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | rule | matcher + key + limit + algorithm + policies, from configuration |
//! | limit, burst, window | how many; how many at once; per how long |
//! | cost | units that one request takes |
//! | key | rule + matched values: names one piece of state |
//! | hit | one key + rule + cost, ready for a store |
//! | decision | outcome for one hit: allow, remaining, `retry_after`, `reset_after` |
//! | verdict | outcome for the request, folded from its decisions |
//! | store | where state lives: memory, redis |
//! | shadow | a rule that is evaluated and counted, never enforced |
//! | quota | one of several rules of a request, which is refused if all of them deny |
//! | descriptor | keys and values by which a mesh asks; each meets at most one rule |
//! | degraded | a verdict made by policy because the store did not answer |
//! | place | where a key's state is: hits in one place are decided in one atomic step |
//! | node | one Redis server, with lanes to it and a breaker before them |
//! | lane | one connection to a node, kept on the thread whose requests it carries |
//!
//! # Rooms
//!
//! Each may use only rooms above it; `tests/it/architecture.rs` checks the `use` lines. Nothing below
//! calls up: health asks the store through the limiter.
//!
//! | room | may use | does |
//! | --- | --- | --- |
//! | [`clock`], in `crates/core` | – | points and lengths of time; the only reader of clocks that decisions depend on |
//! | [`algorithm`], in `crates/core` | clock | decide, commit, charge, give back: pure arithmetic, with a Lua twin in `lua/` |
//! | [`rules`], in `crates/core` | algorithm, clock (spans) | specifications → rules, or all problems; request → the rules that match, their grants and keys: pure, indexed |
//! | [`observer`], in `crates/limiter` | rules, algorithm | what the engine reports: an observer for each rule, events |
//! | [`telemetry`] | observer, rules, algorithm | every metric declared once; logs; traces |
//! | [`store`], in `crates/limiter` | rules (key), algorithm, clock, observer | all hits of a request in one atomic step |
//! | [`limiter`], in `crates/limiter` | store, rules, algorithm, clock, observer | `Limiter::check`, the one decision function |
//! | [`rlaas_proto`], in `crates/proto` | – | messages and services of all protocols, compiled once |
//! | [`rlaas_client`], in `crates/client` | proto, rules, algorithm, clock | what callers embed: deadlines, a policy for no answer, refusals remembered; the load generator |
//! | [`api`] | proto, limiter, rules, algorithm, clock (spans), metrics | thin adapters: bytes ↔ request and verdict |
//! | [`server`] | api, limiter, store (health), clock (jitter, certificates), metrics | bind → serve → drain; workers; turns of connections; health |
//! | [`config`] | the settings types of the rooms above | figment → settings that are valid; what changed |
//! | [`cli`] | everything | one file or folder for each command |
//!
//! # A Check
//!
//! ```text
//! client
//!   │ 0 server/          in its connection's turn; calls that came together are begun together
//!   │ 1 api/             v1.rs, http, envoy: bytes → request, or INVALID_ARGUMENT
//!   │ 2 Limiter::check   rules snapshot → hits (pure, no lock); the deny cache may answer here
//!   │ 3 store            memory: lock the shards in order, decide all, commit if all allow
//!   │                    redis: one script call, the same steps, before the caller's deadline
//!   │                    and if the breaker of the node lets it through
//!   │   back             StoreError → the rule's policy; several places: give back what a later
//!   │                    one denies; remember denials; count; fold into a verdict
//!   └ 4 api/             verdict → response: response.rs, of which gRPC, JSON and the command line are forms
//! ```
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
pub use rlaas_limiter::{limiter, observer, store};

pub mod api;
pub mod cli;
pub mod config;
pub mod server;
pub mod telemetry;
