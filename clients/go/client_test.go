package rlaas

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "rlaas.example/clients/go/ratelimitv1"
)

// rules allow each user two requests a minute, 100 tokens of the resource /tokens, two
// of /login, and two a second, one after the other, of /soon.
const rules = `
rate-limiter: { use-algo: gcra, window-size: 60, max-requests: 2 }
rules:
  - { name: tokens, match: { resource: /tokens }, algorithm: gcra, limit: 100, window: 60s, reservable: true }
  - { name: login, match: { resource: /login }, algorithm: sliding-window-counter, limit: 2, window: 1h, reservable: true }
  - { name: soon, match: { resource: /soon }, algorithm: gcra, limit: 2, window: 1s, burst: 1 }
`

// serve starts a server, whose binary is in RLAAS_SERVER, and returns its address.
func serve(t *testing.T, settings ...string) string {
	t.Helper()
	binary := os.Getenv("RLAAS_SERVER")
	if binary == "" {
		t.Skip("SKIPPED: RLAAS_SERVER is unset")
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	check(t, os.WriteFile(path, []byte(rules), 0o600))
	arguments := []string{"serve", "--config", path, "--set=server.listen=127.0.0.1:0", "--set=server.http=127.0.0.1:0"}
	server := exec.Command(binary, append(arguments, settings...)...)
	log, err := server.StderrPipe()
	check(t, err)
	// The server takes variables that begin with RLAAS_ as its settings.
	server.Env = []string{}
	check(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	listening := regexp.MustCompile(`grpc=(\S+)`)
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if found := listening.FindStringSubmatch(lines.Text()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return found[1]
		}
	}
	t.Fatal("the server must start")
	return ""
}

// fake starts a server that answers the calls of a method with its code, and returns its address and the methods of
// its calls.
func fake(t *testing.T, answers map[string]codes.Code) (string, <-chan string) {
	t.Helper()
	calls := make(chan string, 10)
	allowed := &pb.CheckResponse{Allowed: true}
	server := grpc.NewServer(grpc.UnaryInterceptor(
		func(_ context.Context, _ any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			method := path.Base(info.FullMethod)
			calls <- method
			return map[string]any{
				"Check": allowed, "Reserve": &pb.ReserveResponse{Verdict: allowed, ReservationId: "id"},
				"Commit": &pb.CommitResponse{}, "Cancel": &pb.CancelResponse{},
			}[method], status.Error(answers[method], "")
		}))
	pb.RegisterRateLimitServiceServer(server, pb.UnimplementedRateLimitServiceServer{})
	pb.RegisterReservationServiceServer(server, pb.UnimplementedReservationServiceServer{})
	return start(t, server), calls
}

// start serves until the end of the test, and returns the address.
func start(t *testing.T, server *grpc.Server) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// nobody is an address that nobody listens on.
const nobody = "unix:/nowhere"

func connect(t *testing.T, address string, options ...Option) *Client {
	t.Helper()
	client, err := New(address, options...)
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestUnitsAreTakenAndRefusalsRemembered(t *testing.T) {
	address := serve(t)
	client := connect(t, address, WithTimeout(longTimeout))
	request := Request{UserID: "alice", Attributes: map[string]string{"plan": "free", "app": "a"}}
	for _, want := range []Verdict{
		{Allowed: true, AnsweredBy: Server, Remaining: 1},
		{Allowed: true, AnsweredBy: Server, Remaining: 0},
		{Allowed: false, AnsweredBy: Server, Remaining: 0},
		{Allowed: false, AnsweredBy: Cache, Remaining: 0},
	} {
		got, err := client.Check(t.Context(), request)
		check(t, err)
		if got.Allowed != want.Allowed || got.AnsweredBy != want.AnsweredBy || got.Remaining != want.Remaining {
			t.Errorf("%+v, not %+v", got, want)
		}
	}
	// Neither a look nor a request with an id is answered by the cache.
	for _, other := range []Request{
		{UserID: "alice", Attributes: request.Attributes, Cost: Units(0)},
		{UserID: "alice", Attributes: request.Attributes, ID: "own"},
	} {
		verdict, err := client.Check(t.Context(), other)
		check(t, err)
		if verdict.AnsweredBy != Server {
			t.Errorf("%+v", verdict)
		}
	}
}

func TestRequestTakesWhatIsThere(t *testing.T) {
	client := connect(t, serve(t), WithTimeout(longTimeout))
	request := Request{UserID: "bob", Resource: "/tokens", Cost: Units(60)}
	plain, err := client.Check(t.Context(), request)
	check(t, err)
	if _, ok := plain.Taken(); ok {
		t.Error("a request without AtLeast takes its cost or nothing")
	}
	request.AtLeast = 5
	verdict, err := client.Check(t.Context(), request)
	check(t, err)
	if taken, ok := verdict.Taken(); !ok || taken < 40 || taken >= 60 {
		t.Errorf("%d, %v", taken, ok)
	}
}

func TestWorkIsChargedWhatItCosts(t *testing.T) {
	client := connect(t, serve(t), WithTimeout(longTimeout))
	request := Request{UserID: "alice", Resource: "/tokens", Cost: Units(60), Hold: time.Minute}
	left := func(want int64) {
		t.Helper()
		look, err := client.Check(t.Context(), Request{UserID: "alice", Resource: "/tokens", Cost: Units(0)})
		check(t, err)
		// Units come back while the test runs, which is slow on a busy machine.
		if look.Remaining < want || look.Remaining > want+9 {
			t.Errorf("%d are left, not %d", look.Remaining, want)
		}
	}
	verdict, err := client.Reserve(t.Context(), request, func(ctx context.Context, held *Held) error {
		left(40)
		inner, err := client.Reserve(ctx, request, func(context.Context, *Held) error {
			t.Error("refused work must not be done")
			return nil
		})
		if inner.Allowed || inner.Reason != "HELD" {
			t.Errorf("%+v", inner)
		}
		before := held.ExpiresAt
		for cost, allowed := range map[uint64]bool{30: true, 90: false} {
			more, err := held.Extend(ctx, cost, time.Minute)
			check(t, err)
			if more.Allowed != allowed {
				t.Errorf("%d: %+v", cost, more)
			}
		}
		if held.ExpiresAt.Before(before) {
			t.Errorf("%v, before it was %v", held.ExpiresAt, before)
		}
		left(10)
		return errors.Join(err, held.Commit(ctx, 20), held.Commit(ctx, 50))
	})
	check(t, err)
	if !verdict.Allowed {
		t.Errorf("%+v", verdict)
	}
	left(80)
	func() {
		defer func() { _ = recover() }()
		_, _ = client.Reserve(t.Context(), request, func(context.Context, *Held) error { panic("the work fails") })
	}()
	left(80)
	// The end of the work commits what is held, even if the context of the caller is cancelled.
	ctx, cancel := context.WithCancel(t.Context())
	_, err = client.Reserve(ctx, request, func(context.Context, *Held) error { cancel(); return nil })
	check(t, err)
	left(20)
	reported, err := client.Report(t.Context(), Request{UserID: "alice", Resource: "/tokens", Cost: Units(50)})
	check(t, err)
	if reported.Allowed || reported.Remaining >= 0 {
		t.Errorf("a report must count above the limit: %+v", reported)
	}
}

func TestRejectedSettlements(t *testing.T) {
	commit := func(ctx context.Context, held *Held) error { return held.Commit(ctx, 1) }
	nothing := func(context.Context, *Held) error { return nil }
	for _, c := range []struct {
		answer, want codes.Code
		calls        string
		work         func(context.Context, *Held) error
	}{
		{codes.OK, codes.OK, "Reserve Commit", commit},
		// Nothing is charged: the rest is not held until the reservation ends by itself.
		{codes.InvalidArgument, codes.InvalidArgument, "Reserve Commit Cancel", commit},
		{codes.NotFound, codes.NotFound, "Reserve Commit", commit},
		{codes.NotFound, codes.OK, "Reserve Commit", nothing},
		{codes.PermissionDenied, codes.PermissionDenied, "Reserve Commit", nothing},
		{codes.Unavailable, codes.OK, "Reserve Commit Commit", commit},
		{codes.ResourceExhausted, codes.OK, "Reserve Commit", commit},
	} {
		address, calls := fake(t, map[string]codes.Code{"Commit": c.answer})
		client := connect(t, address, WithTimeout(longTimeout))
		_, err := client.Reserve(t.Context(), Request{UserID: "alice"}, c.work)
		seen := <-calls
		for len(calls) > 0 {
			seen += " " + <-calls
		}
		if status.Code(err) != c.want || seen != c.calls {
			t.Errorf("%v: %v after %s", c.answer, err, seen)
		}
	}
}

func TestPolicyDecidesWithoutAServer(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	var seen error
	for _, want := range []bool{true, false} {
		policy := func(_ context.Context, request Request, err error) bool {
			seen = err
			return request.UserID == "alice" && want
		}
		client := connect(t, nobody, WithOnNoAnswer(policy))
		for range 2 {
			verdict, err := client.Check(t.Context(), Request{UserID: "alice"})
			check(t, err)
			if verdict.Allowed != want || verdict.AnsweredBy != ByPolicy || status.Code(seen) != codes.Unavailable {
				t.Errorf("%+v, %v", verdict, seen)
			}
		}
		worked := false
		_, err := client.Reserve(t.Context(), Request{UserID: "alice"}, func(ctx context.Context, held *Held) error {
			worked = true
			return held.Commit(ctx, 1)
		})
		check(t, err)
		if worked != want || client.Unanswered() != 3 {
			t.Errorf("worked is %v, unanswered %d", worked, client.Unanswered())
		}
	}
	// One line of each client: they are within a second.
	if lines := strings.Count(log.String(), "\n"); lines != 2 {
		t.Errorf("%d lines: %s", lines, &log)
	}
}

func TestContextEndsACallBeforeTheTimeout(t *testing.T) {
	// Accepts connections, and never answers.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	client := connect(t, silent.Addr().String(), WithTimeout(longTimeout))
	started := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	verdict, err := client.Check(ctx, Request{UserID: "alice"})
	check(t, err)
	if verdict.AnsweredBy != ByPolicy || time.Since(started) > longTimeout/2 {
		t.Errorf("%+v after %v", verdict, time.Since(started))
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Check(cancelled, Request{UserID: "alice"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if client.Unanswered() != 1 {
		t.Errorf("a caller that has gone counts as unanswered: %d", client.Unanswered())
	}
}

func TestTextsThatAreNotValidAreMistakes(t *testing.T) {
	client := connect(t, nobody)
	long, many := strings.Repeat("a", 1024), map[string]string{}
	for i := range 33 {
		many[long[:i+1]] = ""
	}
	for want, requests := range map[string][]Request{
		"":           {{UserID: long, Resource: long, ID: long[:64], Attributes: map[string]string{long[:64]: long}}},
		"user_id":    {{}, {UserID: long + "a"}, {UserID: "\xff"}},
		"resource":   {{UserID: "a", Resource: long + "a"}},
		"request_id": {{UserID: "a", ID: long[:65]}},
		"attributes": {
			{UserID: "a", Attributes: many}, {UserID: "a", Attributes: map[string]string{"": "a"}},
			{UserID: "a", Attributes: map[string]string{long[:65]: "a"}},
			{UserID: "a", Attributes: map[string]string{"a": long + "a"}},
		},
		"costs": {{UserID: "a", Costs: map[string]uint64{"\xff": 1}}},
	} {
		for _, request := range requests {
			_, err := client.Check(t.Context(), request)
			field, _, _ := strings.Cut(status.Convert(err).Message(), " ")
			if field != want || err != nil && status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", want, err)
			}
		}
	}
}

func TestSettingsAreValidated(t *testing.T) {
	for _, address := range []string{"host:1", "http://host:1", "https://host:1/", "dns:///host:1", "unix:/path", "[::1]:1"} {
		connect(t, address)
	}
	if sent := connect(t, nobody, WithToken(""), WithAPIKey("")).credentials; len(sent) > 0 {
		t.Errorf("an empty credential is none: %v", sent)
	}
	for _, address := range []string{"", "host", ":1", "ftp://host:1", "http://host:1/path", "unix:"} {
		if _, err := New(address); err == nil {
			t.Errorf("%q must not be an address", address)
		}
	}
	for _, option := range []Option{
		WithTimeout(0), WithOnNoAnswer(nil), WithRetries(6), WithToken("a\nb"), WithAPIKey("é"), WithTLS(&tls.Config{}),
	} {
		if _, err := New("http://host:1", option); err == nil {
			t.Error("the option must not be valid")
		}
	}
}

func TestRefusalsCountDownAndEnd(t *testing.T) {
	now := time.Unix(1000, 0)
	remembered := &refusals{maxAge: time.Second, now: func() time.Time { return now }}
	refused := newVerdict(&pb.CheckResponse{
		Reason:     pb.CheckResponse_OVER_LIMIT,
		RetryAfter: durationpb.New(7 * time.Second),
		Decisions:  []*pb.RuleDecision{{Rule: "hour", Allowed: true}, {Rule: "minute", RetryAfter: durationpb.New(7 * time.Second)}},
	}, Server)
	remembered.insert("a", now, refused)
	now = now.Add(600 * time.Millisecond)
	remembered.insert("b", now, refused)
	verdict := remembered.read(remembered.get("a"))
	if wait, _ := verdict.RetryAfter(); wait != 6400*time.Millisecond || len(verdict.Response.GetDecisions()) != 1 {
		t.Errorf("%+v", verdict)
	}
	now = now.Add(600 * time.Millisecond)
	if now.Before(remembered.get("a").holdsUntil) {
		t.Error("a refusal must not be older than a second")
	}
	if !now.Before(remembered.get("b").holdsUntil) {
		t.Error("the other refusal still holds")
	}
	for i := range 2*maxRefusals + 1 {
		remembered.insert(string(rune(i)), now, refused)
	}
	if size := len(remembered.young) + len(remembered.old); size > 2*maxRefusals {
		t.Errorf("%d refusals", size)
	}
}

func TestRetriesStopWhenMostCallsFail(t *testing.T) {
	var calls throttle
	failure, repeats := status.Error(codes.Unavailable, ""), 0
	for range 20 {
		if calls.record(failure); calls.hasTokens() {
			repeats++
		}
	}
	for range 100 {
		calls.record(nil)
	}
	if repeats != 4 || !calls.hasTokens() {
		t.Errorf("%d repeats", repeats)
	}
}

func TestCallThatIsNotRepeatedHasTheWholeTimeout(t *testing.T) {
	left := make(chan time.Duration, 1)
	server := grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			until, _ := ctx.Deadline()
			left <- time.Until(until)
			return &pb.CheckResponse{Allowed: true}, nil
		}))
	pb.RegisterRateLimitServiceServer(server, pb.UnimplementedRateLimitServiceServer{})
	client := connect(t, start(t, server), WithTimeout(longTimeout), WithRetries(1))
	client.throttle.missing.Store(fullThrottle)
	_, err := client.Check(t.Context(), Request{UserID: "alice"})
	check(t, err)
	if got := <-left; got <= longTimeout/2 {
		t.Errorf("%v of %v", got, longTimeout)
	}
}
