//! What the service is measured against: a bare echo, and a service as one would write it first,
//! which checks a connection out of a pool for each request.

use deadpool_redis::redis::{Script, Value};
use deadpool_redis::{Config, Pool, Runtime};
use rlaas_proto::ratelimit::v1::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use rlaas_proto::ratelimit::v1::{
    CheckBatchRequest, CheckBatchResponse, CheckRequest, CheckResponse, CheckResult,
    GetConfigRequest, GetConfigResponse, RuleDecision,
};
use tokio_stream::Empty;
use tonic::{Request, Response, Status, Streaming};

/// Connections in the pool: as many as there are calls in flight.
const POOL: usize = 128;

/// Serves a ready answer until it is killed; with a URL it asks Redis first.
pub(crate) fn serve(redis: Option<&str>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("an address");
        eprintln!(" serving grpc={} ", listener.local_addr().expect("an address"));
        let connections = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let connections = tokio_stream::StreamExt::map(connections, |connection| {
            connection.inspect(|connection| drop(connection.set_nodelay(true)))
        });
        let service =
            RateLimitServiceServer::new(Bare { answer: answer(), pooled: redis.map(Pooled::new) });
        tonic::transport::Server::builder()
            .max_concurrent_streams(1024)
            .add_service(service)
            .serve_with_incoming(connections)
            .await
            .expect("a server");
    });
}

struct Bare {
    answer: CheckResponse,
    pooled: Option<Pooled>,
}

/// Asks by the same script as the service does.
struct Pooled {
    pool: Pool,
    script: Script,
}

impl Pooled {
    fn new(url: &str) -> Self {
        let mut config = Config::from_url(url);
        config.pool = Some(deadpool_redis::PoolConfig::new(POOL));
        let pool = config.create_pool(Some(Runtime::Tokio1)).expect("a pool");
        let text = [
            include_str!("../../lua/prelude.lua"),
            "\ndo\n",
            include_str!("../../lua/fixed_window.lua"),
            "\nend\n",
            include_str!("../../lua/check.lua"),
        ];
        Self { pool, script: Script::new(&text.concat()) }
    }

    async fn ask(&self, user: &str) -> bool {
        const WINDOW_SECONDS: u64 = 3600;
        #[expect(clippy::disallowed_methods, reason = "names the window as the service does")]
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let index = now.expect("after 1970").as_secs() / WINDOW_SECONDS;
        let mut question = Vec::new();
        let say = |question: &mut Vec<u8>, word: &str| {
            rmp::encode::write_str(question, word).expect("a vector grows");
        };
        say(&mut question, "all_or_nothing");
        let number = |question: &mut Vec<u8>, number: u64| {
            rmp::encode::write_uint(question, number).expect("a vector grows");
        };
        number(&mut question, 1);
        say(&mut question, "fixed_window");
        let (units, window) = (1_000_000_000, WINDOW_SECONDS * 1_000_000);
        // Keys, index, limit, cost, mode, seen, and that it takes.
        for field in [1, index, units, window, units, 1, 1, 0, 1] {
            number(&mut question, field);
        }
        // It keeps no debt.
        rmp::encode::write_nfix(&mut question, -1).expect("a vector grows");
        let mut connection = self.pool.get().await.expect("a connection");
        let mut call = self.script.prepare_invoke();
        call.key(format!("pooled:{user}:{index}")).arg("nonce").arg("").arg(question);
        let reply: Value = call.invoke_async(&mut connection).await.expect("a reply");
        // The nonce, a time of nine bytes, a decision: allowed.
        matches!(reply, Value::BulkString(values) if values.get(15..17) == Some(&[1, 0]))
    }
}

fn answer() -> CheckResponse {
    CheckResponse {
        allowed: true,
        current_count: 1,
        ttl: 60,
        limit: 1_000_000_000,
        remaining: 999_999_999,
        reset_after: Some(prost_types::Duration { seconds: 59, nanos: 999_000_000 }),
        rule: "default".to_owned(),
        algorithm: 1,
        source: 1,
        reason: 1,
        decisions: vec![RuleDecision {
            rule: "default".to_owned(),
            algorithm: 1,
            allowed: true,
            current_count: 1,
            ttl: 60,
            limit: 1_000_000_000,
            remaining: 999_999_999,
            reset_after: Some(prost_types::Duration { seconds: 59, nanos: 999_000_000 }),
            reason: 1,
            ..RuleDecision::default()
        }],
        ..CheckResponse::default()
    }
}

#[tonic::async_trait]
impl RateLimitService for Bare {
    type CheckStreamStream = Empty<Result<CheckResult, Status>>;

    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let mut answer = self.answer.clone();
        if let Some(pooled) = &self.pooled {
            answer.allowed = pooled.ask(&request.get_ref().user_id).await;
        }
        Ok(Response::new(answer))
    }

    async fn check_batch(
        &self,
        _: Request<CheckBatchRequest>,
    ) -> Result<Response<CheckBatchResponse>, Status> {
        Err(Status::unimplemented("bare"))
    }

    async fn check_stream(
        &self,
        _: Request<Streaming<CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        Err(Status::unimplemented("bare"))
    }

    async fn get_config(
        &self,
        _: Request<GetConfigRequest>,
    ) -> Result<Response<GetConfigResponse>, Status> {
        Err(Status::unimplemented("bare"))
    }
}
