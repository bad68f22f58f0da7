package rlaas

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// byUser is a request of the user in the query.
func byUser(r *http.Request) (*Request, error) {
	return &Request{UserID: r.URL.Query().Get("user")}, nil
}

// requestOf returns the status of a user's request, which a handler answers.
func requestOf(limit func(http.Handler) http.Handler, user string, answer http.HandlerFunc) int {
	recorder := httptest.NewRecorder()
	limit(answer).ServeHTTP(recorder, httptest.NewRequest("GET", "/?user="+user, nil))
	return recorder.Code
}

func TestWrongPasswordsAreCounted(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	client := connect(t, serve(t), WithTimeout(longTimeout), WithMaxAge(0))
	login := client.Route(Route{Key: byUser, Resource: "/login", Rule: "login", Count: Failures})
	answer := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	for _, c := range []struct{ status, want int }{{200, 200}, {401, 401}, {200, 200}, {401, 401}, {200, 429}} {
		if got := requestOf(login, "alice", answer(c.status)); got != c.want {
			t.Errorf("%d, not %d", got, c.want)
		}
	}
	// Two guesses at once are held, so a third does not slip through.
	third := 0
	first := requestOf(login, "bob", func(http.ResponseWriter, *http.Request) {
		second := requestOf(login, "bob", func(http.ResponseWriter, *http.Request) {
			third = requestOf(login, "bob", answer(200))
		})
		if second != 200 {
			t.Errorf("%d of the second", second)
		}
	})
	if first != 200 || third != 429 || requestOf(login, "bob", answer(200)) != 200 {
		t.Errorf("%d of the first, %d of the third, and both were right", first, third)
	}
	if log.Len() > 0 {
		t.Error(log.String())
	}
	notReservable := client.Route(Route{Key: byUser, Resource: "/soon", Rule: "soon", Count: Failures})
	for range 2 {
		if got := requestOf(notReservable, fmt.Sprint(time.Now().UnixNano()), answer(200)); got != 500 {
			t.Errorf("%d of a rule that is not reservable", got)
		}
	}
	want := `level=ERROR msg="a rule must be reservable to count failures" rule=soon resource=/soon`
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), want) {
		t.Error(log.String())
	}
}

func TestRequestsWaitInTurn(t *testing.T) {
	client := connect(t, serve(t), WithTimeout(longTimeout), WithMaxAge(0))
	route := Route{Key: byUser, Resource: "/soon", Rule: "soon", Strict: true, Wait: longTimeout}
	limit := client.Route(route)
	passed := func(http.ResponseWriter, *http.Request) {}
	// One passes at once, each of the others half a second after the one before.
	began := time.Now()
	var all sync.WaitGroup
	for range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			if got := requestOf(limit, "alice", passed); got != 200 {
				t.Errorf("%d", got)
			}
		}()
	}
	all.Wait()
	if took := time.Since(began); took < 1400*time.Millisecond {
		t.Errorf("four passed within %v", took)
	}
	// A wait that is too short is none.
	route.Wait = time.Millisecond
	short := client.Route(route)
	if first, second := requestOf(short, "bob", passed), requestOf(short, "bob", passed); first != 200 || second != 429 {
		t.Errorf("%d, %d", first, second)
	}
}

func TestRequestsDoNotWaitLongerForWhatIsHeld(t *testing.T) {
	client := connect(t, serve(t), WithTimeout(longTimeout), WithMaxAge(0))
	route := Route{Key: byUser, Resource: "/login", Rule: "login", Count: Failures, Wait: 200 * time.Millisecond}
	short := client.Route(route)
	route.Wait = longTimeout
	long := client.Route(route)
	passed := func(http.ResponseWriter, *http.Request) {}
	reserve := func(work func()) {
		_ = requestOf(long, "carol", func(http.ResponseWriter, *http.Request) { work() })
	}
	reserve(func() {
		var waits sync.WaitGroup
		reserve(func() {
			began := time.Now()
			got := requestOf(short, "carol", passed)
			if took := time.Since(began); got != 429 || took < 200*time.Millisecond || took > longTimeout/2 {
				t.Errorf("%d after %v", got, took)
			}
			waits.Add(1)
			go func() {
				defer waits.Done()
				if got := requestOf(long, "carol", passed); got != 200 {
					t.Errorf("%d, although a unit was returned meanwhile", got)
				}
			}()
		})
		waits.Wait()
	})
}
