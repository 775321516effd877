// Asks a question and prints the answer while it is generated.
//
//	./generate.sh && go run . -address 127.0.0.1:8000 "What is 7 plus 5?"
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	inferencev1 "quire.local/protos/quire/inference/v1"
)

// Retries of calls that have brought nothing, as docs/grpc.md explains. grpc-go before 1.40 needs GRPC_GO_RETRY=on for them.
const serviceConfig = `{
  "methodConfig": [{
    "name": [{"service": "quire.inference.v1.InferenceService"}],
    "waitForReady": true,
    "retryPolicy": {
      "maxAttempts": 4,
      "initialBackoff": "0.2s",
      "maxBackoff": "5s",
      "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]
    }
  }]
}`

func main() {
	address := flag.String("address", "127.0.0.1:8000", "host:port of the gateway")
	key := flag.String("key", "", "API key, where the server asks for one")
	flag.Parse()
	question := "What is 7 plus 5?"
	if flag.NArg() > 0 {
		question = flag.Arg(0)
	}

	// Later versions of grpc prefer grpc.NewClient with credentials/insecure; this form runs on all of 1.x.
	connection, err := grpc.Dial(*address, grpc.WithInsecure(), grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := inferencev1.NewInferenceServiceClient(connection)

	// The deadline covers the whole answer. The scheduler frees the request's memory when it passes.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if *key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+*key)
	}
	if err := chat(ctx, client, question); err != nil {
		log.Print(err)
		os.Exit(1)
	}
}

func chat(ctx context.Context, client inferencev1.InferenceServiceClient, question string) error {
	temperature, maxTokens := float32(0), uint32(64)
	stream, err := client.Chat(ctx, &inferencev1.ChatRequest{
		Messages: []*inferencev1.ChatMessage{{Role: "user", Content: question}},
		Options: &inferencev1.GenerationOptions{
			Sampling: &inferencev1.SamplingParams{Temperature: &temperature},
			Stop:     &inferencev1.StopConditions{MaxTokens: &maxTokens},
		},
	})
	if err != nil {
		return err
	}
	var usage *inferencev1.Usage
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			// OpenAI's error object, as JSON.
			if body := stream.Trailer().Get("quire-error"); len(body) > 0 {
				return fmt.Errorf("%s: %s", status.Code(err), body[0])
			}
			return err
		}
		switch event := response.Event.(type) {
		case *inferencev1.ChatResponse_Delta:
			fmt.Print(event.Delta.Text)
		case *inferencev1.ChatResponse_Final:
			usage = event.Final.Usage
		}
	}
	fmt.Println()
	if usage == nil {
		return fmt.Errorf("the answer was cut")
	}
	fmt.Printf("%d tokens\n", usage.CompletionTokens)
	return nil
}
