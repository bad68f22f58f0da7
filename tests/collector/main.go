// The OTLP receiver of the OpenTelemetry collector. It takes the receiver's configuration as its
// argument, in JSON, and writes a line of JSON for each export that it accepts.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

// export is a line of the output.
type export struct {
	Authorization []string        `json:"authorization"`
	Metrics       json.RawMessage `json:"metrics,omitempty"`
	Traces        json.RawMessage `json:"traces,omitempty"`
}

var output sync.Mutex

func write(ctx context.Context, line export) error {
	line.Authorization = client.FromContext(ctx).Metadata.Get("authorization")
	output.Lock()
	defer output.Unlock()
	return json.NewEncoder(os.Stdout).Encode(line)
}

func writeMetrics(ctx context.Context, metrics pmetric.Metrics) error {
	text, err := (&pmetric.JSONMarshaler{}).MarshalMetrics(metrics)
	if err != nil {
		return err
	}
	return write(ctx, export{Metrics: text})
}

func writeTraces(ctx context.Context, traces ptrace.Traces) error {
	text, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
	if err != nil {
		return err
	}
	return write(ctx, export{Traces: text})
}

func run() error {
	var text map[string]any
	if err := json.Unmarshal([]byte(os.Args[1]), &text); err != nil {
		return err
	}
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	if err := confmap.NewFromStringMap(text).Unmarshal(config); err != nil {
		return err
	}
	metrics, err := consumer.NewMetrics(writeMetrics)
	if err != nil {
		return err
	}
	traces, err := consumer.NewTraces(writeTraces)
	if err != nil {
		return err
	}
	ctx, settings := context.Background(), receivertest.NewNopSettings(factory.Type())
	ofMetrics, err := factory.CreateMetrics(ctx, settings, config, metrics)
	if err != nil {
		return err
	}
	ofTraces, err := factory.CreateTraces(ctx, settings, config, traces)
	if err != nil {
		return err
	}
	for _, receiver := range []component.Component{ofMetrics, ofTraces} {
		if err := receiver.Start(ctx, componenttest.NewNopHost()); err != nil {
			return err
		}
	}
	select {}
}

func main() {
	log.Fatal(run())
}
