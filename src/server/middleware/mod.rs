//! Middleware: the steps between hyper and the services, the same for gRPC and HTTP.
//!
//! For each request, in this order:
//!
//! 1. count it, for the [read budget](super::read_budget) and for the end of its connection;
//! 2. start its trace, if it is sampled;
//! 3. limit the time that its body may take ([`request_body`]);
//! 4. check that its caller may make it, and attach the caller of an administrative call; a call
//!    whose token may be by a key that is being fetched waits for it;
//! 5. call the services, and catch their panics ([`response_body`] does so for what they stream, and
//!    ends a stream with the credentials that opened it).
//!
//! These are functions rather than tower layers: each step has one use, and futures of their own
//! would only repeat `poll_ready` and `poll`. What decides is called without the router, and over gRPC
//! nothing is boxed for it here.
//!
//! The size of a body is limited where it is read: by tonic, and by `api/http/body.rs`, which reads
//! a body that is too large to its end, so that the client receives the error.

mod request_body;
mod response_body;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::HOST;
use axum::http::{HeaderValue, Request, Response};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use hyper::body::Incoming;
use rlaas_auth::{
    Admission, Auth, Caller, ClientCertificate, ClientNetwork, KeysAwaited, NotAdmitted,
    PeerLocality, RequestOrigin, Requirement, StreamAccess, WebError,
};
use rlaas_proto::WARNING;
use rlaas_telemetry::metrics::Metrics;
use rlaas_telemetry::traces::Traces;
use tower::Service;
use tracing::error;

use self::request_body::RequestBody;
use self::response_body::{ResponseBody, ServiceBody};
use super::lifecycle::Phases;
use super::protocol::Protocol;
use super::read_budget::ReceiveCounters;
use crate::api::http::{Cors, HttpState, OverTls};
use crate::api::{Decisions, RequestTrace, Responding, Sampled};

/// Services of one protocol on one worker, and the settings of the steps before them.
#[derive(Debug)]
pub(super) struct Middleware {
    pub(super) protocol: Protocol,
    /// The services that are called without the router; `services` has all.
    pub(super) direct: DirectServices,
    pub(super) services: Router,
    pub(super) auth: Arc<Auth>,
    /// Origins whose pages may read decisions. `None` over gRPC.
    pub(super) cors: Option<Cors>,
    /// `None` traces no request.
    pub(super) traces: Option<Traces>,
    /// Maximum time for the body of a request to arrive.
    pub(super) request_timeout: Duration,
    pub(super) metrics: Arc<Metrics>,
}

/// The services that decide, called without the router.
#[derive(Debug)]
pub(super) enum DirectServices {
    None,
    Grpc(Box<Decisions>),
    Http(Arc<HttpState>),
}

/// State that the requests of one connection share.
#[derive(Debug)]
pub(super) struct ConnectionContext {
    pub(super) middleware: Arc<Middleware>,
    /// Certificate of the client; `None` if the server requests none.
    pub(super) certificate: Option<ClientCertificate>,
    /// Place that the connection comes from.
    pub(super) peer: PeerLocality,
    /// Address of the client; not known but for the console.
    pub(super) network: ClientNetwork,
    /// Set for HTTP over TLS.
    pub(super) over_tls: Option<OverTls>,
    pub(super) counters: Arc<ReceiveCounters>,
    pub(super) phases: Arc<Phases>,
}

impl ConnectionContext {
    /// Responds to a request.
    pub(super) fn respond(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + use<> {
        self.counters.count_request();
        let in_flight = self.phases.in_flight.token();
        self.add_extensions(&mut request);
        let trace = self.middleware.start_trace(&mut request);
        let has_response = Arc::<AtomicBool>::default();
        let cors = self.middleware.cors.as_ref().and_then(|cors| cors.headers_for(&request));
        let warning = self.middleware.auth.api_keys().warning(&request);
        let authorized = self.middleware.authorize(&mut request, self.peer);
        let request =
            request.map(|body| RequestBody::new(body, Arc::clone(self), Arc::clone(&has_response)));
        let mut access = None;
        let responding = match authorized {
            Ok(granted) => {
                access = granted;
                self.middleware.call(request)
            }
            Err(NotAdmitted::Refused(error)) => {
                let (protocol, request) = (self.middleware.protocol, request.map(Body::new));
                let refusal = async move { Ok(protocol.refuse(error, request).await) };
                Either::Right(refusal.boxed())
            }
            Err(NotAdmitted::AwaitsKeys(keys)) => {
                let middleware = Arc::clone(&self.middleware);
                Either::Right(middleware.respond_after(keys, request, self.peer).boxed())
            }
        };
        let context = Arc::clone(self);
        let response = match responding {
            Either::Left(deciding) => Either::Left(deciding.map(of_decision)),
            Either::Right(responding) => Either::Right(responding.map(of_router)),
        };
        AssertUnwindSafe(response).catch_unwind().map(move |response| {
            has_response.store(true, Ordering::Relaxed);
            let middleware = &context.middleware;
            let panicked = |_panic| Ok(middleware.panicked().map(ServiceBody::Left));
            let Ok(mut response) = response.unwrap_or_else(panicked);
            middleware.protocol.correct_status(&mut response);
            let trace = trace.and_then(|trace| middleware.record_response(trace, &mut response));
            if let Some(warning) = warning {
                let warning = HeaderValue::from_static(warning);
                response.headers_mut().entry(WARNING).or_insert(warning);
            }
            if let Some(cors) = cors {
                cors.add_to(response.headers_mut());
            }
            let access = access.or_else(|| response.extensions_mut().remove());
            Ok(response
                .map(|body| ResponseBody::new(body, context, in_flight, trace).with_access(access)))
        })
    }

    fn add_extensions(&self, request: &mut Request<Incoming>) {
        if let Some(certificate) = &self.certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        if let Some(over_tls) = self.over_tls {
            request.extensions_mut().insert(over_tls);
        }
        if self.middleware.protocol == Protocol::Console {
            let kind = self.middleware.protocol.kind_of(request);
            request.extensions_mut().insert(RequestOrigin { kind, peer: self.peer });
            request.extensions_mut().insert(self.network);
        }
    }
}

fn of_decision(
    response: Result<Response<tonic::body::Body>, Infallible>,
) -> Result<Response<ServiceBody>, Infallible> {
    response.map(|response| response.map(ServiceBody::Right))
}

fn of_router(
    response: Result<Response<Body>, Infallible>,
) -> Result<Response<ServiceBody>, Infallible> {
    response.map(|response| response.map(ServiceBody::Left))
}

impl Middleware {
    /// Calls the services.
    fn call(
        &self,
        request: Request<RequestBody>,
    ) -> Either<Responding, BoxFuture<'static, Result<Response<Body>, Infallible>>> {
        let request = match &self.direct {
            DirectServices::Grpc(decisions) => match decisions.call(request) {
                Either::Left(deciding) => return Either::Left(deciding),
                Either::Right(request) => request,
            },
            DirectServices::Http(state) => match state.call(request) {
                Either::Left(responding) => return Either::Right(responding),
                Either::Right(request) => request,
            },
            DirectServices::None => request,
        };
        Either::Right(self.services.clone().call(request).boxed())
    }

    fn start_trace<B>(&self, request: &mut Request<B>) -> Option<Box<RequestTrace>> {
        let trace = self.protocol.trace(self.traces.as_ref()?, request)?;
        request.extensions_mut().insert(Sampled);
        Some(Box::new(trace))
    }

    /// Checks that the caller may make the request. An administrative request gets its [`Caller`]
    /// as an extension. Returns the access of a call that opens a stream.
    fn authorize<B>(
        &self,
        request: &mut Request<B>,
        peer: PeerLocality,
    ) -> Result<Option<StreamAccess>, NotAdmitted> {
        if self.protocol != Protocol::Grpc && request.headers().get_all(HOST).iter().count() > 1 {
            return Err(NotAdmitted::Refused(WebError::Hosts.into()));
        }
        let Some(requirement) = self.requirement(request, peer) else { return Ok(None) };
        let admission = self.auth.admit_or_wait(request, requirement)?;
        Ok(self.attach(request, admission, requirement))
    }

    /// Responds to a request when the keys of the issuer were fetched. The response has the
    /// access of a stream as an extension.
    async fn respond_after(
        self: Arc<Self>,
        keys: KeysAwaited,
        mut request: Request<RequestBody>,
        peer: PeerLocality,
    ) -> Result<Response<Body>, Infallible> {
        keys.wait().await;
        let admitted = match self.requirement(&request, peer) {
            Some(requirement) => {
                let admitted = self.auth.admit(&request, requirement);
                admitted.map(|admitted| self.attach(&mut request, admitted, requirement))
            }
            None => Ok(None),
        };
        match admitted {
            Ok(access) => {
                let mut response = self.services.clone().call(request).await?;
                if let Some(access) = access {
                    response.extensions_mut().insert(access);
                }
                Ok(response)
            }
            Err(error) => Ok(self.protocol.refuse(error, request.map(Body::new)).await),
        }
    }

    /// Adds the caller of an administrative request and the project of its API key to a request.
    /// Returns the access of a call that opens a stream, which its service has as an extension.
    fn attach<B>(
        &self,
        request: &mut Request<B>,
        admission: Admission,
        requirement: Requirement,
    ) -> Option<StreamAccess> {
        // Before the caller is added: a stream is admitted by what the client sent.
        let is_stream = self.protocol.is_stream(request.uri().path());
        let access =
            is_stream.then(|| StreamAccess::new(&self.auth, request, requirement, &admission));
        let extensions = request.extensions_mut();
        if let Some(caller) = admission.caller {
            extensions.insert::<Caller>(caller);
        }
        if let Some(tenant) = admission.tenant {
            extensions.insert(tenant);
        }
        if let Some(access) = &access {
            extensions.insert(access.clone());
        }
        access
    }

    /// Returns what a request requires of its caller, and where it comes from; `None` if everybody
    /// may make it, or its service decides by its body.
    fn requirement<B>(&self, request: &Request<B>, peer: PeerLocality) -> Option<Requirement> {
        let may_wait = self.protocol.takes_key_in_body(request.method(), request.uri().path());
        if may_wait && self.auth.awaits_body(request) {
            return None;
        }
        let permission = self.protocol.permission_of(request.method(), request.uri().path())?;
        let origin = RequestOrigin { kind: self.protocol.kind_of(request), peer };
        Some(Requirement { permission, origin })
    }

    /// Records a response in its trace, and returns the trace if the status is still to come, in
    /// the trailers of a gRPC response.
    fn record_response(
        &self,
        mut trace: Box<RequestTrace>,
        response: &mut Response<ServiceBody>,
    ) -> Option<Box<RequestTrace>> {
        trace.record_decision(response.extensions_mut().remove());
        match self.protocol {
            Protocol::Http | Protocol::Console | Protocol::Metrics => {
                trace.record_http_status(response.status());
            }
            Protocol::Grpc if trace.record_grpc_status(response.headers()) => {}
            Protocol::Grpc => return Some(trace),
        }
        None
    }

    /// Counts a panic of a service, and returns the response to its caller.
    fn panicked(&self) -> Response<Body> {
        self.count_panic();
        self.protocol.internal_error()
    }

    fn count_panic(&self) {
        error!("a request handler panicked");
        self.metrics.panics.inc();
    }
}
