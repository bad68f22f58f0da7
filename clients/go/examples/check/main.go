// Checks the rate limit of each user id on standard input. Run: yes alice | head -6 | go run ./examples/check
//
// The argument is the address of the server. DEADLINE_MS is the timeout of a call, generous for a first try.
package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	rlaas "rlaas.example/clients/go"
)

func main() {
	timeout, err := time.ParseDuration(cmp.Or(os.Getenv("DEADLINE_MS"), "5000") + "ms")
	if err != nil {
		log.Fatal(err)
	}
	address := "127.0.0.1:50051"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	limits := rlaas.MustNew(address, rlaas.WithTimeout(timeout), rlaas.WithRetries(1))
	defer func() { _ = limits.Close() }()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		verdict, err := limits.Check(context.Background(), rlaas.Request{UserID: lines.Text()})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", lines.Text(), outcome(verdict))
	}
}

func outcome(verdict rlaas.Verdict) string {
	if verdict.AnsweredBy == rlaas.ByPolicy {
		return "no response: allowed"
	}
	if verdict.Allowed {
		return fmt.Sprintf("allowed, %d left", verdict.Remaining)
	}
	if wait, ok := verdict.RetryAfter(); ok {
		return fmt.Sprintf("429 Too Many Requests, Retry-After: %.0f", math.Ceil(wait.Seconds()))
	}
	// Waiting does not help: the cost is above the limit, or the limit is 0.
	return fmt.Sprintf("403 Forbidden, %v", verdict.Reason)
}
