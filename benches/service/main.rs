//! The whole service against a bare tonic echo: rates and processor time as ratios within one run.
//!
//! ```sh
//! cargo bench --bench service                 # needs h2load: apt-get install nghttp2-client
//! cargo bench --bench service -- --seconds 5 --rounds 5
//! cargo bench --bench service -- --only Redis,Envoy   # these and the first two, rates only
//! cargo bench --bench service -- --only CheckBatch --algorithm gcra
//! ```
//!
//! The echo is tonic's service on hyper-util with the same messages, HTTP/2 settings and threads that
//! returns a prepared response to every Check. The difference to it is the cost of the decision. The load has
//! 4 connections of 32 streams each (HTTP/1.1: 128 connections): prepared frames with 1,000 ids for
//! single calls, h2load for batches and HTTP. Servers are measured in turn, round by round, and medians
//! are compared, because the machines are noisy. On two cores the server has one and the load the other.
//! If the load is slower than the server, compare the processor time per response, not the rate.

mod bare;
mod contender;
mod frames;
mod load;

use std::process::{Command, Stdio};

use contender::{Contender, Load};
use load::Requests;
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::redis::RedisServer;

/// The allocator of the service.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A limit so high that no request is denied.
const HIGH_LIMIT: &str = "rate-limiter.max-requests=1000000000";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| {
        let position = arguments.iter().position(|argument| argument == name)?;
        arguments.get(position + 1).map(String::as_str)
    };
    if arguments.iter().any(|argument| argument == "--echo") {
        return bare::serve();
    }
    let found = Command::new("h2load").arg("--version").stdout(Stdio::null()).status();
    assert!(found.is_ok(), "no h2load: apt-get install nghttp2-client");
    let number = |name: &str, default: usize| {
        after(name).and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let algorithm = after("--algorithm").unwrap_or("fixed-window");
    compare(number("--seconds", 3), number("--rounds", 5), after("--only"), algorithm);
}

/// Returns the setting with rules that all apply to each request.
fn several_limits(count: usize, algorithm: &str) -> String {
    let rule = |number| {
        format!(
            "{{name: r{number}, algorithm: {algorithm}, limit: 1000000000, window: {}m}}",
            60 + number
        )
    };
    format!("rules=[{}]", (0..count).map(rule).collect::<Vec<_>>().join(", "))
}

fn compare(seconds: usize, rounds: usize, only: Option<&str>, algorithm: &str) {
    let use_algorithm = format!("rate-limiter.use-algo={algorithm}");
    let in_memory = [HIGH_LIMIT, use_algorithm.as_str()];
    let redis = RedisServer::start_without_clock_shim();
    let url = format!("store.redis.url={}", redis.url());
    let on_redis = [
        &in_memory[..],
        &[
            "store.backend=redis",
            &url,
            "store.redis.timeout=1s",
            "store.redis.max-in-flight=100000",
        ],
    ]
    .concat();
    // Almost every id of a batch is in a slot of its own, and each slot is a script call of its own.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cluster = runtime.block_on(RedisCluster::start(3, 0));
    let settings = cluster.settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let on_cluster = [
        &in_memory[..],
        &settings,
        &["store.redis.timeout=1s", "store.redis.max-in-flight=100000"],
    ]
    .concat();
    let masters = [cluster.node(0), cluster.node(1), cluster.node(2)];
    let [two, four, eight] = [2, 4, 8].map(|count| several_limits(count, algorithm));
    let in_memory_of = [&two, &four, &eight].map(|rules| [rules.as_str()]);
    let [two, four, eight] =
        [&two, &four, &eight].map(|rules| [&on_redis[1..], &[rules.as_str()]].concat());
    let requests = Requests::new();
    let files = format!("envoy.files={}", requests.rules());
    let all = [
        Contender::own("bare tonic echo", &["--echo"]),
        Contender::rlaas("Check, memory", Load::Check, &in_memory),
        Contender::rlaas("Check of 2 limits, memory", Load::Check, &in_memory_of[0]),
        Contender::rlaas("Check of 4 limits, memory", Load::Check, &in_memory_of[1]),
        Contender::rlaas("Check of 8 limits, memory", Load::Check, &in_memory_of[2]),
        Contender::rlaas("Check, Redis", Load::Check, &on_redis).with_redis(&[&redis]),
        Contender::rlaas("Check of 2 limits, Redis", Load::Check, &two).with_redis(&[&redis]),
        Contender::rlaas("Check of 4 limits, Redis", Load::Check, &four).with_redis(&[&redis]),
        Contender::rlaas("Check of 8 limits, Redis", Load::Check, &eight).with_redis(&[&redis]),
        Contender::rlaas("CheckBatch of 100, memory", Load::Batch, &in_memory),
        Contender::rlaas("CheckBatch of 100, Redis", Load::Batch, &on_redis).with_redis(&[&redis]),
        Contender::rlaas("CheckBatch of 100, three masters", Load::Batch, &on_cluster)
            .with_redis(&masters),
        Contender::rlaas("POST /v1/check, memory", Load::Json, &in_memory),
        Contender::rlaas("Envoy's ShouldRateLimit, memory", Load::Envoy, &[&files]),
    ];
    let is_selected = |contender: &Contender| {
        only.is_none_or(|only| only.split(',').any(|part| contender.name.contains(part)))
    };
    let of = all.into_iter().enumerate();
    let mut contenders: Vec<Contender> =
        of.filter(|(at, one)| *at < 2 || is_selected(one)).map(|(_, one)| one).collect();
    for round in 0..=rounds {
        for contender in &mut contenders {
            let before = (contender.processor_seconds(), contender.redis_seconds());
            let (answers, rate) = requests.run_closed_loop(contender, seconds);
            let spent = contender.processor_seconds() - before.0;
            let spent_by_redis = contender.redis_seconds() - before.1;
            // The first round warms up.
            if round > 0 {
                contender.rates.push(rate);
                contender.costs.push(spent * 1e6 / answers);
                contender.redis_costs.push(spent_by_redis * 1e6 / answers);
            }
        }
        eprintln!("round {round} of {rounds}");
    }
    print_rates(&mut contenders);
    print_redis_costs(&mut contenders);
    print_overload(&requests, &mut contenders, seconds);
    if only.is_none() {
        compare_latency(&requests, [&contenders[0], &contenders[1]], seconds, rounds);
        compare_start(&in_memory, rounds);
    }
}

/// Prints the rates as ratios to the echo, and those of other protocols as ratios to Check.
fn print_rates(contenders: &mut [Contender]) {
    println!(
        "| server | per second | ratio to the echo | processor µs per call | echo's µs / these µs |"
    );
    println!("| --- | --- | --- | --- | --- |");
    let mut medians = |of: usize| {
        let Contender { rates, costs, .. } = &mut contenders[of];
        (median(rates), median(costs))
    };
    let (echo, check) = (medians(0), medians(1));
    for contender in contenders.iter_mut() {
        let (name, rate, cost) =
            (contender.name, median(&mut contender.rates), median(&mut contender.costs));
        match contender.load {
            Load::Check | Load::Json | Load::Envoy => println!(
                "| {name} | {rate:.0} | {:.2} | {cost:.2} | {:.2} |",
                rate / echo.0,
                echo.1 / cost
            ),
            Load::Batch => {
                println!(
                    "| {name} | {:.0} decisions | – | {:.3} | – |",
                    rate * 100.0,
                    cost / 100.0
                );
            }
        }
    }
    println!("\n| server | rate, ratio to Check | Check's processor time / this |");
    println!("| --- | --- | --- |");
    let is_other = |contender: &&mut Contender| matches!(contender.load, Load::Json | Load::Envoy);
    for contender in contenders.iter_mut().filter(is_other) {
        let (rate, cost) = (median(&mut contender.rates), median(&mut contender.costs));
        println!("| {} | {:.2} | {:.2} |", contender.name, rate / check.0, check.1 / cost);
    }
}

/// Prints the processor time of all Redis servers per request.
fn print_redis_costs(contenders: &mut [Contender]) {
    println!("\n| server | processor µs of Redis per request |");
    println!("| --- | --- |");
    for Contender { name, redis_costs, load, .. } in contenders {
        let requests = if *load == Load::Batch { 100.0 } else { 1.0 };
        let cost = median(redis_costs) / requests;
        if cost > 0.0 {
            println!("| {name} | {cost:.2} |");
        }
    }
}

/// Sends more calls than Redis can answer, and prints what comes back.
fn print_overload(requests: &Requests, contenders: &mut [Contender], seconds: usize) {
    println!("\n| overload | answers, ratio to the rate above | refused | failed | p99 ms |");
    println!("| --- | --- | --- | --- | --- |");
    let is_on_redis = |one: &&mut Contender| one.name.ends_with("limits, Redis");
    for contender in contenders.iter_mut().filter(is_on_redis) {
        let rate = median(&mut contender.rates);
        for factor in [2.0, 4.0, 8.0] {
            let report = requests.run_at_rate(contender, seconds, rate * factor);
            let [answered, refused, failed] = report.latencies.each_ref().map(Vec::len);
            let most = report.latencies[0].get(answered * 99 / 100).map_or(0, |micros| *micros);
            let answers = f64::from(u32::try_from(answered).expect("seconds"));
            println!(
                "| {}, {factor} × | {:.2} | {refused} | {failed} | {:.1} |",
                contender.name,
                answers / report.elapsed.as_secs_f64() / rate,
                f64::from(most) / 1e3
            );
        }
    }
}

/// Compares latencies at half of the maximum rate of the echo.
fn compare_latency(requests: &Requests, of: [&Contender; 2], seconds: usize, rounds: usize) {
    let rate = of[0].rates[rounds / 2] / 2.0;
    let mut percentiles = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for _ in 0..rounds {
        for (contender, [half, most]) in of.iter().zip(&mut percentiles) {
            let [latencies, ..] = requests.run_at_rate(contender, seconds, rate).latencies;
            half.push(f64::from(latencies[latencies.len() / 2]));
            most.push(f64::from(latencies[latencies.len() * 99 / 100]));
        }
    }
    println!("\n| at {rate:.0} per second | p50 µs | p99 µs | p99, ratio to the echo |");
    println!("| --- | --- | --- | --- |");
    let echo = median(&mut percentiles[0][1]);
    for (contender, [half, most]) in of.iter().zip(&mut percentiles) {
        let (half, most) = (median(half), median(most));
        println!("| {} | {half:.0} | {most:.0} | {:.2} |", contender.name, most / echo);
    }
}

/// Measures the time from the start of the process to the log entry with its addresses.
fn compare_start(settings: &[&str], rounds: usize) {
    let start = |_| Contender::rlaas("start", Load::Check, settings).start * 1e3;
    let mut starts: Vec<f64> = (0..rounds).map(start).collect();
    println!("\nstart to serving, memory: {:.1} ms", median(&mut starts));
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
