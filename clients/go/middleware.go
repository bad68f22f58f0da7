package rlaas

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "rlaas.example/clients/go/ratelimitv1"
)

// Middleware limits the requests of a handler by their keys. A request above a limit gets status 429, one that the
// policy refuses 503, both with a problem document. Other responses have the headers RateLimit-Policy and
// RateLimit.
func (c *Client) Middleware(key KeyFunc) func(http.Handler) http.Handler {
	return c.Route(Route{Key: key})
}

// UnaryServerInterceptor limits calls by their keys. A call above a limit gets RESOURCE_EXHAUSTED, one that the
// policy refuses UNAVAILABLE, both with a RetryInfo. Health checks and reflection are exempt.
func (c *Client) UnaryServerInterceptor(key RPCKeyFunc) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		sent, err := c.admitRPC(ctx, key, info.FullMethod)
		// The headers describe the limits; a call is not rejected because it has sent its own already.
		_ = grpc.SetHeader(ctx, sent)
		if err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}
}

// StreamServerInterceptor limits streams when they begin, as [Client.UnaryServerInterceptor] does calls.
func (c *Client) StreamServerInterceptor(key RPCKeyFunc) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		sent, err := c.admitRPC(stream.Context(), key, info.FullMethod)
		_ = stream.SetHeader(sent)
		if err != nil {
			return err
		}
		return handler(server, stream)
	}
}

func (c *Client) admitRPC(ctx context.Context, key RPCKeyFunc, method string) (metadata.MD, error) {
	// Probes have no key, and an outage of rlaas must not fail them.
	if strings.HasPrefix(method, "/grpc.health.v1.Health/") || strings.HasPrefix(method, "/grpc.reflection.") {
		return nil, nil
	}
	request, err := key(ctx, method)
	verdict, rejected := c.admit(ctx, request, err, c.check)
	sent := metadata.MD{}
	for name, values := range DraftHeaders(verdict) {
		sent.Append(name, values...)
	}
	if rejected == nil {
		return sent, nil
	}
	if rejected.retryAfter != nil {
		sent.Set("retry-after", strconv.FormatInt(wholeSeconds(rejected.retryAfter), 10))
	}
	return sent, rejected.status().Err()
}

// admit returns the verdict on a request, if there is one, and its rejection or nil.
func (c *Client) admit(
	ctx context.Context, request *Request, keyErr error, decide func(context.Context, Request) (Verdict, error),
) (Verdict, *rejection) {
	var missing missingKey
	switch {
	case errors.As(keyErr, &missing):
		return Verdict{}, &rejection{kind: invalid, detail: missing.Error()}
	case keyErr != nil:
		c.warn(&c.keyLogged, time.Second, "request without a key rejected", "error", keyErr)
		return Verdict{}, &rejection{kind: internal, detail: "internal error"}
	case request == nil:
		return Verdict{}, nil
	}
	verdict, err := decide(ctx, *request)
	switch code := status.Code(err); {
	case err == nil:
	// A caller must not avoid the limits by a short deadline, before which the server gives up.
	case ctx.Err() != nil || err == errImpatient:
		return Verdict{}, &rejection{kind: expired, detail: "deadline exceeded"}
	// The server will never decide it. Allowing it would open a way past every limit.
	case code == codes.InvalidArgument || code == codes.FailedPrecondition || code == codes.OutOfRange:
		return Verdict{}, &rejection{kind: invalid, detail: status.Convert(err).Message()}
	// The policy decides for a mistake of the program too: a wrong token does not take a site down.
	default:
		verdict = c.byPolicy(ctx, *request, err)
	}
	switch {
	case verdict.Allowed:
		return verdict, nil
	case verdict.Reason == pb.CheckResponse_NO_RULE.String():
		return verdict, &rejection{kind: noRule, detail: "no rule matches"}
	case verdict.isUndecided():
		return verdict, &rejection{kind: noAnswer, detail: "rate limiter unavailable", retryAfter: verdict.Response.GetRetryAfter()}
	}
	return verdict, overLimit(verdict)
}

// rejection is a response in the place of that of the service.
type rejection struct {
	kind   rejectionKind
	detail string
	// Nil if waiting does not help.
	retryAfter *durationpb.Duration
	// Policies that refuse the request.
	policies []string
}

// rejectionKind is the reason of a rejection, over HTTP and over gRPC.
type rejectionKind struct {
	status int
	code   codes.Code
}

var (
	limited  = rejectionKind{http.StatusTooManyRequests, codes.ResourceExhausted}
	noRule   = rejectionKind{http.StatusForbidden, codes.PermissionDenied}
	noAnswer = rejectionKind{http.StatusServiceUnavailable, codes.Unavailable}
	expired  = rejectionKind{http.StatusServiceUnavailable, codes.DeadlineExceeded}
	invalid  = rejectionKind{http.StatusBadRequest, codes.InvalidArgument}
	internal = rejectionKind{http.StatusInternalServerError, codes.Internal}
)

// problem is a problem document.
//
// Source: RFC 9457; draft-ietf-httpapi-ratelimit-headers-11, 5.1.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Policies []string `json:"violated-policies,omitzero"`
	Reason   string   `json:"reason,omitempty"`
}

func (r *rejection) write(w http.ResponseWriter) {
	document := problem{Type: "about:blank", Title: http.StatusText(r.kind.status), Status: r.kind.status, Detail: r.detail}
	switch r.kind {
	case limited:
		document.Type = "https://iana.org/assignments/http-problem-types#quota-exceeded"
		document.Title, document.Policies = "Quota Exceeded", r.policies
	case noRule:
		document.Reason = "NO_RULE"
	}
	r.setRetryAfter(w)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(r.kind.status)
	// The peer may have gone.
	_ = json.NewEncoder(w).Encode(document)
}

func (r *rejection) setRetryAfter(w http.ResponseWriter) {
	if r.retryAfter != nil {
		w.Header().Set("Retry-After", strconv.FormatInt(wholeSeconds(r.retryAfter), 10))
	}
}

func (r *rejection) status() *status.Status {
	message := r.detail
	if r.kind == limited {
		message = "rate limit exceeded: " + message
	}
	plain := status.New(r.kind.code, message)
	if r.retryAfter == nil {
		return plain
	}
	detailed, err := plain.WithDetails(&errdetails.RetryInfo{RetryDelay: r.retryAfter})
	if err != nil {
		return plain
	}
	return detailed
}
