// Holds 1,000 tokens for a user, does the work, and charges what it has cost. Run: go run ./examples/reserve alice
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	rlaas "rlaas.example/clients/go"
)

func main() {
	limits := rlaas.MustNew("127.0.0.1:50051")
	defer func() { _ = limits.Close() }()
	request := rlaas.Request{UserID: os.Args[1], Resource: "/tokens", Cost: rlaas.Units(1000)}
	verdict, err := limits.Reserve(context.Background(), request, func(ctx context.Context, held *rlaas.Held) error {
		fmt.Println("working")
		return held.Commit(ctx, 420)
	})
	if err != nil {
		log.Fatal(err)
	}
	if wait, ok := verdict.RetryAfter(); ok {
		fmt.Println("try again in", wait)
	}
}
