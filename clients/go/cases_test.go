package rlaas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// longTimeout is longer than any wait of a test that passes, on a busy machine too.
const longTimeout = 20 * time.Second

// Case is one of the table that the clients of all languages pass.
type Case struct {
	Name   string
	Method string
	Client struct {
		Timeout    *float64
		OnNoAnswer string `yaml:"on_no_answer"`
		OnOverload string `yaml:"on_overload"`
		Retries    int
		Token      *string
		APIKey     *string `yaml:"api_key"`
	}
	Do         []string
	Expect     []map[string]any
	Calls      *int64
	RequestIDs *int64 `yaml:"request_ids"`
	Unanswered uint64
}

// TestCases plays clients/cases.yaml with its server, whose address is in RLAAS_CASES.
func TestCases(t *testing.T) {
	address := os.Getenv("RLAAS_CASES")
	if address == "" {
		t.Skip("SKIPPED: RLAAS_CASES is unset")
	}
	text, err := os.ReadFile("../cases.yaml")
	check(t, err)
	var table struct{ Cases []Case }
	check(t, yaml.Unmarshal(text, &table))
	if len(table.Cases) == 0 {
		t.Fatal("the table must have cases")
	}
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) { play(t, address, c) })
	}
}

func play(t *testing.T, address string, c Case) {
	client := connect(t, address, c.options()...)
	user := fmt.Sprintf("%s@go-%d", c.Name, time.Now().UnixNano())
	if len(c.Do) != len(c.Expect) {
		t.Fatal("each step must have a result")
	}
	for i, step := range c.Do {
		started := time.Now()
		verdict, err := run(client, step, user)
		for name, want := range c.Expect[i] {
			if name == "within" {
				within := time.Duration(want.(float64) * float64(time.Second))
				if took := time.Since(started); took > within {
					t.Errorf("step %d took %v", i, took)
				}
			} else if got := field(verdict, err, name); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("step %d: %s is %v, not %v (%+v, %v)", i, name, got, want, verdict, err)
			}
		}
		if _, ok := c.Expect[i]["error"]; err != nil && !ok {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if client.Unanswered() != c.Unanswered {
		t.Errorf("unanswered is %d, not %d", client.Unanswered(), c.Unanswered)
	}
	method := c.Method
	if method == "" {
		method = "Check"
	}
	seen, err := client.Check(t.Context(), Request{UserID: "calls/" + method + "/" + user})
	check(t, err)
	if c.Calls != nil && seen.Response.GetCurrentCount() != *c.Calls {
		t.Errorf("%d calls, not %d", seen.Response.GetCurrentCount(), *c.Calls)
	}
	if c.RequestIDs != nil && seen.Remaining != *c.RequestIDs {
		t.Errorf("%d request ids, not %d", seen.Remaining, *c.RequestIDs)
	}
}

// options has a short timeout only where the server is to be late.
func (c Case) options() []Option {
	options := []Option{WithRetries(c.Client.Retries), WithTimeout(longTimeout)}
	for _, expected := range c.Expect {
		if _, ok := expected["within"]; ok {
			// On a busy machine a shorter one takes the lateness of its timer for an overload.
			options = append(options, WithTimeout(250*time.Millisecond))
		}
	}
	if c.Client.OnNoAnswer == "deny" {
		options = append(options, WithOnNoAnswer(Deny))
	}
	if c.Client.OnOverload == "allow" {
		options = append(options, WithOnOverload(Allow))
	}
	if c.Client.Token != nil {
		options = append(options, WithToken(*c.Client.Token))
	}
	if c.Client.APIKey != nil {
		options = append(options, WithAPIKey(*c.Client.APIKey))
	}
	return options
}

func run(client *Client, step, user string) (Verdict, error) {
	ctx, request := context.Background(), Request{UserID: user}
	if step == "check" {
		return client.Check(ctx, request)
	}
	failure := errors.New("the work fails")
	verdict, err := client.Reserve(ctx, request, func(ctx context.Context, held *Held) error {
		if step == "reserve-and-fail" {
			return failure
		}
		return held.Commit(ctx, 3)
	})
	if errors.Is(err, failure) {
		err = nil
	}
	return verdict, err
}

func field(verdict Verdict, err error, name string) any {
	switch name {
	case "allowed":
		return verdict.Allowed
	case "answered_by":
		return verdict.AnsweredBy
	case "rule":
		return verdict.Rule
	case "remaining":
		return verdict.Remaining
	case "reason":
		return verdict.Reason
	case "retry_after":
		if wait, ok := verdict.RetryAfter(); ok {
			return wait.Seconds()
		}
		return nil
	case "error":
		return map[codes.Code]string{
			codes.InvalidArgument: "INVALID_ARGUMENT", codes.Unauthenticated: "UNAUTHENTICATED",
		}[status.Code(err)]
	}
	return "no such field"
}
