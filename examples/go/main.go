// Asks a question, prints the answer while it is generated, and retries if the stream is cut off.
//
//	./generate.sh && go run . -address 127.0.0.1:8000 "What is 7 plus 5?"
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	inferencev1 "quire.local/protos/quire/inference/v1"
)

// Retries calls that fail before their first message, as docs/grpc.md explains. grpc-go before 1.40 needs
// GRPC_GO_RETRY=on.
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
	key := flag.String("key", "", "API key, if the server needs one")
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
	models, err := client.ListModels(ctx, &inferencev1.ListModelsRequest{})
	if err != nil {
		log.Fatal(err)
	}
	if len(models.Models) == 0 {
		log.Fatal("the server has no model yet")
	}
	if err := chat(ctx, client, models.Models[0].Name, question); err != nil {
		log.Fatal(err)
	}
}

// wasCut reports whether a stream was cut off. If a router dies during a stream, grpc-go reports the reset stream as
// INTERNAL.
func wasCut(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.Internal && strings.Contains(err.Error(), "RST_STREAM")
}

// chat prints the answer. The library does not retry a stream after its first message, so chat does. At temperature 0
// or with a seed, a retry generates the same text; chat skips the part that is already printed.
func chat(ctx context.Context, client inferencev1.InferenceServiceClient, model, question string) error {
	printed := 0
	for attempt := 1; ; attempt++ {
		received := 0
		usage, err := ask(ctx, client, model, question, func(text string) {
			if start := max(0, printed-received); start < len(text) {
				fmt.Print(text[start:])
			}
			received += len(text)
			printed = max(printed, received)
		})
		if err == nil {
			fmt.Printf("\n%d tokens\n", usage.CompletionTokens)
			return nil
		}
		if attempt == 4 || !wasCut(err) {
			return err
		}
		log.Printf("%v; asking again", err)
		time.Sleep(100 * time.Millisecond << attempt)
	}
}

// ask passes the pieces of the answer's text to write. It returns the usage, which is in the last message.
func ask(
	ctx context.Context, client inferencev1.InferenceServiceClient, model, question string, write func(text string),
) (*inferencev1.Usage, error) {
	temperature, maxTokens := float32(0), uint32(64)
	stream, err := client.Chat(ctx, &inferencev1.ChatRequest{
		Model:    model,
		Messages: []*inferencev1.ChatMessage{{Role: "user", Content: question}},
		Options: &inferencev1.GenerationOptions{
			Sampling: &inferencev1.SamplingParams{Temperature: &temperature},
			Stop:     &inferencev1.StopConditions{MaxTokens: &maxTokens},
		},
	})
	if err != nil {
		return nil, err
	}
	var usage *inferencev1.Usage
	for {
		response, err := stream.Recv()
		if err == io.EOF && usage == nil {
			return nil, errors.New("the answer ended without its last message")
		}
		if err == io.EOF {
			return usage, nil
		}
		if err != nil {
			// OpenAI's error object, as JSON.
			if body := stream.Trailer().Get("quire-error"); len(body) > 0 {
				return nil, status.Error(status.Code(err), body[0])
			}
			return nil, err
		}
		switch event := response.Event.(type) {
		case *inferencev1.ChatResponse_Delta:
			write(event.Delta.Text)
		case *inferencev1.ChatResponse_Final:
			usage = event.Final.Usage
		}
	}
}
