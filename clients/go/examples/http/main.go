// Limits a handler of net/http by the address of its clients. Run: go run ./examples/http
package main

import (
	"io"
	"log"
	"net/http"

	rlaas "rlaas.example/clients/go"
)

func main() {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") })
	limits := rlaas.MustNew("127.0.0.1:50051")
	http.Handle("/", limits.Middleware(rlaas.ByAddress(0))(hello))
	log.Fatal(http.ListenAndServe("127.0.0.1:8000", nil))
}
