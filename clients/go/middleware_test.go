package rlaas

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "rlaas.example/clients/go/ratelimitv1"
)

// get sends a request through the middleware to a handler that answers 200.
func get(client *Client, key KeyFunc, change func(*http.Request)) *http.Response {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	request := httptest.NewRequest("GET", "/a%20b", nil)
	change(request)
	recorder := httptest.NewRecorder()
	// As of a handler before the middleware.
	recorder.Header().Set("Retry-After", "99")
	client.Middleware(key)(handler).ServeHTTP(recorder, request)
	return recorder.Result()
}

func withHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func TestHTTPRequestsAreLimited(t *testing.T) {
	client := connect(t, serve(t), WithTimeout(longTimeout))
	for range 2 {
		allowed := get(client, ByAddress(0), func(*http.Request) {})
		limit := allowed.Header.Get("RateLimit")
		if allowed.StatusCode != 200 || !regexp.MustCompile(`^"default";r=[01];t=\d+$`).MatchString(limit) {
			t.Errorf("%d, RateLimit %q", allowed.StatusCode, limit)
		}
	}
	// The second refusal is that of the cache.
	for range 2 {
		refused := get(client, ByAddress(0), func(*http.Request) {})
		var document map[string]any
		check(t, json.NewDecoder(refused.Body).Decode(&document))
		wait := refused.Header.Get("Retry-After")
		want := map[string]any{
			"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Quota Exceeded",
			"status": 429.0, "detail": "try again after " + wait + " seconds", "violated-policies": []any{"default"},
		}
		if refused.StatusCode != 429 || !reflect.DeepEqual(document, want) {
			t.Errorf("%d %v", refused.StatusCode, document)
		}
		want429 := `"default";q=2;w=60 "default";r=0;t=` + wait + " application/problem+json"
		got := []string{refused.Header.Get("RateLimit-Policy"), refused.Header.Get("RateLimit"), refused.Header.Get("Content-Type")}
		if strings.Join(got, " ") != want429 {
			t.Errorf("%v, not %s", got, want429)
		}
	}
	// Behind a proxy each client has a limit of its own.
	if other := get(client, ByAddress(1), withHeader(forwardedFor, "9.9.9.9, 198.51.100.7")); other.StatusCode != 200 {
		t.Error(other.Status)
	}
	for _, value := range []string{"", "é", strings.Repeat("a", 1025), strings.Repeat("a", 900_000)} {
		if invalid := get(client, ByHeader("X-API-Key"), withHeader("X-API-Key", value)); invalid.StatusCode != 400 {
			t.Errorf("%.10q: %s", value, invalid.Status)
		}
	}
	spelled := func(r *http.Request) { r.URL.Path = "/\xff" }
	if other := get(client, ByAddress(0), spelled); other.Header.Get("RateLimit") == "" {
		t.Errorf("a path that is not UTF-8 must be limited: %s", other.Status)
	}
	exempt := func(*http.Request) (*Request, error) { return nil, nil }
	if free := get(client, exempt, func(*http.Request) {}); free.StatusCode != 200 || free.Header.Get("RateLimit") != "" {
		t.Error(free.Status)
	}
	cancelled := func(r *http.Request) {
		r.Header.Set("X-API-Key", "dora")
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		*r = *r.WithContext(ctx)
	}
	if gone := get(client, ByHeader("X-API-Key"), cancelled); gone.StatusCode != 503 {
		t.Error("a request without a verdict must not be allowed because its sender has gone")
	}
	if client.Unanswered() != 0 {
		t.Errorf("%d requests are unanswered", client.Unanswered())
	}
}

func TestRulesMayRefuseAllOtherRequests(t *testing.T) {
	client := connect(t, serve(t, "--set=unmatched=deny"), WithTimeout(longTimeout))
	refused := get(client, ByAddress(0), func(*http.Request) {})
	body, _ := io.ReadAll(refused.Body)
	if refused.StatusCode != 403 || !strings.Contains(string(body), `"reason":"NO_RULE"`) {
		t.Errorf("%s %s", refused.Status, body)
	}
}

func TestPolicyDecidesHTTPRequestsWithoutAServer(t *testing.T) {
	wrongToken := serve(t, "--set=auth.tokens=[{name: other, sha256: 27042f4e6eca7d0b2a7ee4026df2ecfa51d3339e6d122aa099118ecd8563bad9, roles: [check]}]")
	for _, address := range []string{nobody, wrongToken} {
		allowed := get(connect(t, address, WithTimeout(longTimeout)), ByAddress(0), func(*http.Request) {})
		if allowed.StatusCode != 200 {
			t.Errorf("%s: %s", address, allowed.Status)
		}
		denied := get(connect(t, address, WithTimeout(longTimeout), WithOnNoAnswer(Deny)), ByAddress(0), func(*http.Request) {})
		body, _ := io.ReadAll(denied.Body)
		want := `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"rate limiter unavailable"}`
		if denied.StatusCode != 503 || denied.Header.Get("Retry-After") != "1" || strings.TrimSpace(string(body)) != want {
			t.Errorf("%s: %s %s", address, denied.Status, body)
		}
	}
}

func TestCallersDoNotAvoidTheLimits(t *testing.T) {
	patient := func(*http.Request) {}
	hasty := func(r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), longTimeout/2)
		t.Cleanup(cancel)
		*r = *r.WithContext(ctx)
	}
	for _, c := range []struct {
		answer codes.Code
		caller func(*http.Request)
		want   int
	}{
		{codes.OutOfRange, patient, 400},
		{codes.DeadlineExceeded, patient, 200},
		// The server has answered in time.
		{codes.DeadlineExceeded, hasty, 503},
		{codes.Unauthenticated, hasty, 200},
	} {
		address, _ := fake(t, map[string]codes.Code{"Check": c.answer})
		if got := get(connect(t, address, WithTimeout(longTimeout)), ByAddress(0), c.caller); got.StatusCode != c.want {
			t.Errorf("%v: %s", c.answer, got.Status)
		}
	}
}

func TestProbesAreNotLimited(t *testing.T) {
	limit := connect(t, nobody, WithOnNoAnswer(Deny)).UnaryServerInterceptor(ByMetadata("x-api-key"))
	for method, want := range map[string]codes.Code{
		"/grpc.health.v1.Health/Check":                              codes.OK,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": codes.OK,
		"/grpc.health.v1.HealthOfOthers/Check":                      codes.InvalidArgument,
	} {
		handler := func(context.Context, any) (any, error) { return nil, nil }
		if _, err := limit(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method}, handler); status.Code(err) != want {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestCallsAreLimited(t *testing.T) {
	client := connect(t, serve(t), WithTimeout(longTimeout))
	calls := limitedService(t, client, ByMetadata("x-api-key"))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "bob")
	for _, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
		var sent metadata.MD
		_, err := calls.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&sent))
		if status.Code(err) != want || len(sent.Get("ratelimit")) != 1 || (len(sent.Get("retry-after")) == 1) != (err != nil) {
			t.Errorf("%v, %v", err, sent)
		}
		details := status.Convert(err).Details()
		if len(details) == 0 && err == nil {
			continue
		}
		if info, ok := details[0].(*errdetails.RetryInfo); !ok || info.GetRetryDelay().AsDuration() <= 0 {
			t.Errorf("%v", details)
		}
	}
	watch := func() error {
		stream, err := calls.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		check(t, err)
		_, err = stream.Recv()
		return err
	}
	// The method is the resource, but the default rule counts users only.
	if err := watch(); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	if _, err := calls.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	ctx = metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "carol")
	check(t, watch())
}

func TestPolicyDecidesCallsWithoutAServer(t *testing.T) {
	for policy, want := range map[*Client]codes.Code{
		connect(t, nobody):                       codes.OK,
		connect(t, nobody, WithOnNoAnswer(Deny)): codes.Unavailable,
	} {
		calls := limitedService(t, policy, ByPeer(0))
		_, err := calls.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if status.Code(err) != want || len(status.Convert(err).Details()) != map[codes.Code]int{codes.Unavailable: 1}[want] {
			t.Error(err)
		}
	}
}

// limitedService serves the health of nothing, as a service of another name, which is not exempt.
func limitedService(t *testing.T, client *Client, key RPCKeyFunc) grpc_health_v1.HealthClient {
	t.Helper()
	unary, stream := client.UnaryServerInterceptor(key), client.StreamServerInterceptor(key)
	server := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return unary(ctx, request, &grpc.UnaryServerInfo{FullMethod: "/limited/" + path.Base(info.FullMethod)}, next)
		}),
		grpc.StreamInterceptor(func(server any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return stream(server, s, &grpc.StreamServerInfo{FullMethod: "/limited/" + path.Base(info.FullMethod)}, next)
		}),
	)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	conn, err := grpc.NewClient(start(t, server), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

func TestOnlyAddressesThatTrustedProxiesAppendAreUsed(t *testing.T) {
	forged := []string{"203.0.113.9, 198.51.100.7", "10.0.0.2:8080"}
	for _, c := range []struct {
		peer, want string
		forwarded  []string
		proxies    int
	}{
		{"192.0.2.1:7", "192.0.2.1", forged, 0},
		{"192.0.2.1:7", "10.0.0.2", forged, 1},
		{"192.0.2.1:7", "198.51.100.7", forged, 2},
		{"192.0.2.1:7", "192.0.2.1", forged, 4},
		{"192.0.2.1:7", "192.0.2.1", nil, 1},
		{"192.0.2.1:7", "192.0.2.1", []string{"unknown"}, 1},
		{"192.0.2.1:7", "192.0.2.1", []string{"10.0.0.2,"}, 1},
		{"192.0.2.1:7", "2001:db8:1:2::/64", []string{"[2001:db8:1:2:3::4]:443"}, 1},
		{"[::ffff:192.0.2.1]:7", "192.0.2.1", nil, 0},
		{"[fe80::1%eth0]:7", "fe80::/64", nil, 0},
		{"@", "", nil, 0},
	} {
		if got, _ := clientAddress(c.peer, c.forwarded, c.proxies); got != c.want {
			t.Errorf("%d of %v at %s: %q, not %q", c.proxies, c.forwarded, c.peer, got, c.want)
		}
	}
}

func TestHeadersDescribeTheRules(t *testing.T) {
	verdict := newVerdict(&pb.CheckResponse{Decisions: []*pb.RuleDecision{
		{Rule: `a "b\c" 100%é`, Limit: 5, Remaining: -1, Reason: pb.CheckResponse_OVER_LIMIT, Window: durationpb.New(time.Minute)},
		{Rule: "ban", Reason: pb.CheckResponse_BANNED, Window: durationpb.New(1500 * time.Millisecond)},
		{Rule: "jobs", Limit: 3, Allowed: true, Algorithm: pb.Algorithm_CONCURRENCY},
		{Rule: "trial", Shadow: true},
		{Rule: "ops", Allowed: true, Reason: pb.CheckResponse_UNLIMITED},
	}}, Server)
	want := http.Header{
		"Ratelimit-Policy": {`"a \"b\\c\" 100%25%C3%A9";q=5;w=60, "ban";q=0, "jobs";q=3;qu="concurrent-requests"`},
		"Ratelimit":        {`"a \"b\\c\" 100%25%C3%A9";r=0, "ban";r=0`},
	}
	if got := DraftHeaders(verdict); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}
