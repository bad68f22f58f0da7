package rlaas

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func newQueue() *queue {
	return &queue{timeout: time.Minute, longest: maxWait, full: errOverload, flows: make(map[string]*flow)}
}

// fill takes all slots.
func (q *queue) fill() {
	for i := range maxInFlight {
		q.sendOrQueue(fmt.Sprint("slot", i), time.Time{}, make(chan decision, 1))
	}
}

// join has a call of a key sent, decided or queued.
func (q *queue) join(key string, refusedAt time.Time) chan decision {
	decided := make(chan decision, 1)
	q.sendOrQueue(key, refusedAt, decided)
	return decided
}

func TestKeysAreServedInTurn(t *testing.T) {
	q := newQueue()
	q.fill()
	var flood []chan decision
	for range maxWaiting {
		flood = append(flood, q.join("flood", time.Time{}))
	}
	if q.waiting != maxWaiting/4 || (<-flood[maxWaiting/4]).err != errOverload {
		t.Errorf("%d calls of one key wait", q.waiting)
	}
	other := q.join("other", time.Time{})
	q.leave("slot0", false, nil)
	q.leave("slot1", false, nil)
	if len(flood[0]) != 1 || len(flood[1]) != 0 || len(other) != 1 {
		t.Error("the second slot must be that of the other key")
	}
	for i := range maxWaiting {
		q.join(fmt.Sprint(i), time.Time{})
	}
	if last := q.join("last", time.Time{}); q.waiting != maxWaiting || (<-last).err != errOverload {
		t.Errorf("%d calls wait", q.waiting)
	}
}

func TestRefusalDecidesAllThatWaitForIt(t *testing.T) {
	q, lately := newQueue(), time.Now()
	refused := &refusal{askedAt: lately}
	probe := <-q.join("alice", lately)
	second, third := q.join("alice", lately), q.join("alice", lately)
	if !probe.isProbe || len(second) != 0 {
		t.Fatal("one call of a refused key must be in flight")
	}
	// One that is allowed lets the next go.
	q.leave("alice", true, nil)
	if sent := <-second; !sent.isProbe || sent.refused != nil || len(third) != 0 {
		t.Errorf("%+v", sent)
	}
	fourth := q.join("alice", lately)
	q.leave("alice", true, refused)
	if (<-third).refused != refused || (<-fourth).refused != refused {
		t.Error("the refusal must decide those that wait")
	}
	if len(q.flows) != 0 || q.inFlight != 0 || q.waiting != 0 {
		t.Errorf("%+v", q)
	}
	if long := <-q.join("alice", lately.Add(-recently)); long.isProbe {
		t.Error("the refusal is too old")
	}
}

func TestNobodyWaitsForAServerThatIsAway(t *testing.T) {
	q, away := newQueue(), status.Error(codes.Unavailable, "")
	q.fill()
	waits := q.join("alice", time.Time{})
	q.lastAnswer = time.Now()
	q.record(away)
	q.leave("slot0", false, nil)
	if made := <-waits; made.err != nil {
		t.Fatalf("another call was answered: %v", made.err)
	}
	waits = q.join("alice", time.Time{})
	q.lastAnswer = time.Now().Add(-2 * q.timeout)
	for _, neutral := range []error{errOverload, errImpatient} {
		q.record(neutral)
		q.leave("slot1", false, nil)
		if made := <-waits; made.err != nil {
			t.Fatal("it shows nothing about the server")
		}
		waits = q.join("alice", time.Time{})
	}
	q.record(away)
	q.leave("slot2", false, nil)
	if made := <-waits; made.err != away {
		t.Errorf("%v", made.err)
	}
	if probe := <-q.join("alice", time.Time{}); probe.err != nil {
		t.Error("a free slot must be used")
	}
	if made := <-q.join("alice", time.Time{}); made.err != away {
		t.Errorf("%v", made.err)
	}
	q.record(status.Error(codes.ResourceExhausted, ""))
	q.leave("slot3", false, nil)
	q.join("alice", time.Time{})
	if waits = q.join("alice", time.Time{}); len(waits) != 0 {
		t.Error("the server has answered")
	}
}

func TestCallerWhoLeavesTheQueueCountsNothing(t *testing.T) {
	q := newQueue()
	q.fill()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if made := q.enter(ctx, "alice", time.Time{}, 0); made.err != errOverload || q.waiting != 0 || len(q.flows) != 0 {
		t.Errorf("%+v, %+v", made, q)
	}
	if made := q.enter(t.Context(), "alice", time.Time{}, -q.longest); made.err != errOverload || q.waiting != 0 {
		t.Errorf("%+v, %+v", made, q)
	}
	// The slot is not that of one who has left.
	q.leave("slot0", false, nil)
	if made := q.enter(t.Context(), "bob", time.Time{}, 0); made.err != nil {
		t.Errorf("%+v", made)
	}
}

func TestFloodIsLimited(t *testing.T) {
	// A third would pass after half of the window.
	client := connect(t, serve(t, "--set=rate-limiter.window-size=86400"), WithTimeout(longTimeout))
	client.queue.longest = longTimeout
	var passed, wrong atomic.Int64
	var calls sync.WaitGroup
	begin := make(chan bool)
	for range 20_000 {
		calls.Add(1)
		go func() {
			defer calls.Done()
			<-begin
			if verdict, err := client.Check(t.Context(), Request{UserID: "alice"}); err != nil || verdict.Allowed {
				passed.Add(1)
			}
		}()
	}
	close(begin)
	for i := range 10 {
		// The queue may be full of one key for as long as it likes, and has a place for another.
		verdict, err := client.Check(t.Context(), Request{UserID: fmt.Sprint("bob", i)})
		if err != nil || !verdict.Allowed || verdict.AnsweredBy != Server {
			wrong.Add(1)
		}
	}
	calls.Wait()
	if passed.Load() != 2 || wrong.Load() > 0 {
		t.Errorf("%d passed, and %d answers of others are wrong", passed.Load(), wrong.Load())
	}
}

func TestManyCallsOfOneKeyPass(t *testing.T) {
	client := connect(t, serve(t, "--set=rate-limiter.max-requests=1000000"), WithTimeout(longTimeout))
	client.queue.longest = longTimeout
	var passed atomic.Int64
	var calls sync.WaitGroup
	for range 2000 {
		calls.Add(1)
		go func() {
			defer calls.Done()
			if verdict, err := client.Check(t.Context(), Request{UserID: "alice"}); err == nil && verdict.AnsweredBy == Server && verdict.Allowed {
				passed.Add(1)
			}
		}()
	}
	if calls.Wait(); passed.Load() != 2000 {
		t.Errorf("%d passed", passed.Load())
	}
}

// saying starts a server that answers each call with this status.
func saying(t *testing.T, code codes.Code, reason string) string {
	t.Helper()
	said := status.New(code, "as the test says")
	if reason != "" {
		detailed, err := said.WithDetails(&errdetails.ErrorInfo{Domain: "rlaas", Reason: reason})
		check(t, err)
		said = detailed
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return said.Err() }))
	return start(t, server)
}

func TestServerSaysWhyItDoesNotDecide(t *testing.T) {
	for _, c := range []struct {
		code              codes.Code
		says, want        string
		answeredBy        AnsweredBy
		allowed, isPolicy bool
	}{
		{codes.Unavailable, "STORE_UNAVAILABLE", "STORE_UNAVAILABLE", Server, false, false},
		{codes.Unavailable, "NOT_READY", "NOT_READY", Server, false, false},
		{codes.ResourceExhausted, "OVERLOADED", "OVERLOADED", Server, false, false},
		{codes.ResourceExhausted, "OVERLOADED", "OVERLOADED", ByPolicy, true, true},
		{codes.Unavailable, "", "NO_ANSWER", ByPolicy, true, false},
	} {
		options := []Option{WithTimeout(longTimeout)}
		if c.isPolicy {
			options = append(options, WithOnOverload(Allow))
		}
		client := connect(t, saying(t, c.code, c.says), options...)
		checked, err := client.Check(t.Context(), Request{UserID: "alice"})
		check(t, err)
		reserved, err := client.Reserve(t.Context(), Request{UserID: "alice"}, func(context.Context, *Held) error { return nil })
		check(t, err)
		for _, verdict := range []Verdict{checked, reserved} {
			wait, hasWait := verdict.RetryAfter()
			if verdict.Allowed != c.allowed || verdict.Reason != c.want || verdict.AnsweredBy != c.answeredBy ||
				hasWait == c.allowed || hasWait && wait != time.Second {
				t.Errorf("%s: %+v", c.says, verdict)
			}
		}
		want := map[bool]int{true: 200, false: 503}[c.allowed]
		response := get(client, ByAddress(0), func(*http.Request) {})
		if response.StatusCode != want || (response.Header.Get("Retry-After") == "1") == c.allowed {
			t.Errorf("%s: %s, Retry-After %q", c.says, response.Status, response.Header.Get("Retry-After"))
		}
	}
}

func TestStoreIsAskedAgainAndAnOverloadedServerIsNot(t *testing.T) {
	for reason, want := range map[string]int{"STORE_UNAVAILABLE": 3, "OVERLOADED": 1} {
		calls := 0
		client := connect(t, nobody, WithTimeout(longTimeout), WithRetries(2))
		said := status.New(map[string]codes.Code{"OVERLOADED": codes.ResourceExhausted, "STORE_UNAVAILABLE": codes.Unavailable}[reason], "")
		said, err := said.WithDetails(&errdetails.ErrorInfo{Domain: "rlaas", Reason: reason})
		check(t, err)
		may := attempts{timeout: longTimeout, retries: 2, isRequest: true}
		_ = client.call(t.Context(), may, func(context.Context) error { calls++; return said.Err() })
		if calls != want {
			t.Errorf("%s: %d calls", reason, calls)
		}
	}
}

func TestLateProgramIsOverloaded(t *testing.T) {
	client := connect(t, nobody)
	busy := func(ctx context.Context) error {
		<-ctx.Done()
		client.wasLate.Store(time.Now().UnixNano())
		return status.FromContextError(ctx.Err()).Err()
	}
	if err := client.attempt(t.Context(), attempts{isRequest: true}, time.Millisecond, busy); err != errOverload {
		t.Error(err)
	}
	// Settlements are never refused.
	if err := client.attempt(t.Context(), attempts{}, time.Millisecond, busy); status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
}

func TestReservationsHaveABoundOfTheirOwn(t *testing.T) {
	client := connect(t, nobody)
	work := func(context.Context, *Held) error { return nil }
	client.reserving.Store(maxInFlight)
	verdict, err := client.Reserve(t.Context(), Request{UserID: "alice"}, work)
	check(t, err)
	if verdict.Allowed || verdict.Reason != "OVERLOADED" || verdict.AnsweredBy != ByPolicy || client.reserving.Load() != maxInFlight {
		t.Errorf("%+v", verdict)
	}
	// While the server is away there is no overload. Reservations show it, too.
	client.reserving.Store(0)
	_, err = client.Reserve(t.Context(), Request{UserID: "alice"}, work)
	check(t, err)
	client.reserving.Store(maxInFlight)
	verdict, err = client.Reserve(t.Context(), Request{UserID: "alice"}, work)
	check(t, err)
	if !verdict.Allowed || verdict.Reason != "NO_ANSWER" {
		t.Errorf("%+v", verdict)
	}
}

func TestMistakesAreOneLineOfTheLog(t *testing.T) {
	plain, tokens := serve(t), serve(t, "--set=auth.tokens=[{name: other, sha256: 27042f4e6eca7d0b2a7ee4026df2ecfa51d3339e6d122aa099118ecd8563bad9, roles: [check]}]")
	certified := httptest.NewUnstartedServer(http.NotFoundHandler())
	certified.EnableHTTP2, certified.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	certified.StartTLS()
	t.Cleanup(certified.Close)
	secret := certified.Listener.Addr().String()
	for _, c := range []struct{ address, want string }{
		{tokens, "missing or unknown bearer token or client certificate"},
		{"https://" + plain, "does not speak TLS: try http://"},
		{"https://" + secret, "certificate not trusted (WithTLS): certificate signed by unknown authority"},
		{secret, "does not answer gRPC: it must be an address of server.listen, with https:// if it requires TLS, and a certificate"},
		{"127.0.0.1:1", "no server (is `rlaas serve` running?): dial tcp 127.0.0.1:1: connect: connection refused"},
	} {
		var written bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&written, nil)))
		client := connect(t, c.address, WithToken("wrong"), WithTimeout(longTimeout))
		for range 3 {
			get(client, ByAddress(0), func(*http.Request) {})
		}
		slog.SetDefault(before)
		if strings.Count(written.String(), "\n") != 1 || !strings.Contains(written.String(), "address="+c.address+" error=\""+c.want) {
			t.Errorf("%s: %s", c.want, &written)
		}
	}
}
