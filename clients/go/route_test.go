package rlaas_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	rlaas "rlaas.example/clients/go"
	"rlaas.example/clients/go/rlaastest"
)

// program is a program with a route whose requests are limited. It answers with the status that a request asks for.
func program(limits *rlaas.Client, route rlaas.Route) http.Handler {
	routes := http.NewServeMux()
	routes.Handle("GET /users/{id}", limits.Route(route)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := 0; r.FormValue("status") != "" {
			_, _ = fmt.Sscan(r.FormValue("status"), &status)
			w.WriteHeader(status)
		}
		_, _ = io.WriteString(w, "found")
	})))
	return routes
}

// get returns the status of a response, with its body and headers of limits.
func get(program http.Handler, path string) string {
	request, recorder := httptest.NewRequest("GET", path, nil), httptest.NewRecorder()
	program.ServeHTTP(recorder, request)
	got := fmt.Sprint(recorder.Code, " ", strings.TrimSpace(recorder.Body.String()))
	for _, name := range []string{"RateLimit", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After"} {
		if value := recorder.Header().Get(name); value != "" {
			got += fmt.Sprintf(" %s=%s", name, value)
		}
	}
	return got
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s\nnot %s", got, want)
	}
}

const problem = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
	`"status":429,"detail":"try again after 60 seconds","violated-policies":["users"]}`

func TestRouteIsLimitedByItsPattern(t *testing.T) {
	service := rlaastest.Count(rlaastest.Limit{Rule: "users", Units: 3, Window: time.Minute, Resource: "/users/{id}"})
	users := program(service.Client(), rlaas.Route{Rule: "users", Cost: 2, Strict: true})
	expect(t, get(users, "/users/1"), `200 found RateLimit="users";r=1;t=60`)
	expect(t, get(users, "/users/2"), "429 "+problem+` RateLimit="users";r=1;t=60 Retry-After=60`)
	service.Advance(time.Minute)
	expect(t, get(users, "/users/2"), `200 found RateLimit="users";r=1;t=60`)
	request := service.Requests()[0]
	expect(t, fmt.Sprint(request.GetUserId(), request.GetResource(), request.GetCost()), "192.0.2.1/users/{id}2")
}

func TestServiceOfTestsTakesWhatIsThere(t *testing.T) {
	service := rlaastest.Count(rlaastest.Limit{Rule: "all", Units: 10}, rlaastest.Limit{Rule: "few", Units: 4, Window: time.Minute})
	client := service.Client()
	for _, expected := range []string{"true 4", "false 0"} {
		request := rlaas.Request{UserID: "alice", Cost: rlaas.Units(6), AtLeast: 2}
		verdict, err := client.Check(t.Context(), request)
		taken, _ := verdict.Taken()
		expect(t, fmt.Sprint(verdict.Allowed, taken, err), expected+" <nil>")
	}
	verdict, _ := rlaastest.Allow().Client().Check(t.Context(), rlaas.Request{UserID: "alice", Cost: rlaas.Units(6), AtLeast: 2})
	taken, _ := verdict.Taken()
	expect(t, fmt.Sprint(taken), "6")
}

func TestSettingsOfARoute(t *testing.T) {
	service := rlaastest.Count(rlaastest.Limit{Rule: "users", Units: 1, Window: time.Minute, Resource: "us*"})
	users := program(service.Client(), rlaas.Route{
		Key:      func(r *http.Request) (*rlaas.Request, error) { return &rlaas.Request{UserID: "alice"}, nil },
		Resource: "users",
		Skip:     func(r *http.Request) bool { return r.FormValue("skip") != "" },
		Headers:  rlaas.LegacyHeaders,
		Handler: func(w http.ResponseWriter, r *http.Request, status int, verdict rlaas.Verdict) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, verdict.Rule+" refuses")
		},
	})
	expect(t, get(users, "/users/1?skip=1"), "200 found")
	expect(t, get(users, "/users/1"), "200 found RateLimit-Limit=1 RateLimit-Remaining=0 RateLimit-Reset=60")
	expect(t, get(users, "/users/1"), "429 users refuses RateLimit-Limit=1 RateLimit-Remaining=0 RateLimit-Reset=60 Retry-After=60")
	plain := program(rlaastest.Refuse("users", 30*time.Second).Client(), rlaas.Route{Headers: rlaas.NoHeaders})
	expect(t, get(plain, "/users/1"), "429 "+strings.Replace(problem, "60", "30", 1)+" Retry-After=30")
}

func TestRuleThatDoesNotDecideIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	other := rlaastest.Count(rlaastest.Limit{Rule: "default", Units: 9, Window: time.Minute}).Client()
	users := program(other, rlaas.Route{Rule: "users"})
	for remaining := 8; remaining > 5; remaining-- {
		expect(t, get(users, "/users/1"), fmt.Sprintf(`200 found RateLimit="default";r=%d;t=60`, remaining))
	}
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "rule=users resource=/users/{id} others=[default]") {
		t.Error(log.String())
	}
	strict := program(other, rlaas.Route{Rule: "users", Strict: true})
	expect(t, get(strict, "/users/1"), `500 {"type":"about:blank","title":"Internal Server Error","status":500,"detail":"internal error"}`)
}

func TestOtherServicesOfTests(t *testing.T) {
	strict := rlaas.Route{Rule: "users", Strict: true}
	expect(t, get(program(rlaastest.Allow().Client(), strict), "/users/1"), "200 found")
	away := rlaastest.Away()
	expect(t, get(program(away.Client(), strict), "/users/1"), "200 found")
	denying := program(away.Client(rlaas.WithOnNoAnswer(rlaas.Deny)), strict)
	expect(t, get(denying, "/users/1")[:3], "503")
	away.SetAway(false)
	expect(t, get(denying, "/users/1"), "200 found")
}

func TestOnlyFailuresAreCounted(t *testing.T) {
	login := rlaastest.Limit{Rule: "login", Units: 2, Window: time.Minute}
	for count, statuses := range map[rlaas.Outcome]string{
		rlaas.Failures:  "200 404 200 500 429 429",
		rlaas.Successes: "200 404 200 429 429 429",
	} {
		users := program(rlaastest.Count(login).Client(), rlaas.Route{Rule: "login", Count: count})
		var got []string
		for _, status := range []string{"200", "404", "201", "500", "400", ""} {
			got = append(got, get(users, "/users/1?status="+status)[:3])
		}
		expect(t, strings.Replace(strings.Join(got, " "), "201", "200", 1), statuses)
	}
	service := rlaastest.Count(login)
	panics := service.Client().Route(rlaas.Route{Rule: "login", Count: rlaas.Failures})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("the handler fails") }))
	for range 2 {
		func() {
			defer func() { _ = recover() }()
			get(panics, "/")
		}()
	}
	expect(t, get(panics, "/")[:3], "429")
	// The handler of a framework such as gin writes to its own writer.
	own := &ownWriter{httptest.NewRecorder(), http.StatusUnauthorized}
	limits := rlaastest.Count(login).Client()
	framework := limits.Route(rlaas.Route{Rule: "login", Count: rlaas.Successes})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { _, _ = io.WriteString(own, "no") }))
	for range 5 {
		framework.ServeHTTP(own, httptest.NewRequest("GET", "/", nil))
	}
	expect(t, own.Body.String(), "nonononono")
	defer func() {
		if recover() == nil {
			t.Error("outcomes need the name of a rule")
		}
	}()
	service.Client().Route(rlaas.Route{Count: rlaas.Failures})
}

type ownWriter struct {
	*httptest.ResponseRecorder
	status int
}

func (o *ownWriter) Status() int { return o.status }
