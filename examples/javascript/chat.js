// Asks a question, prints the answer while it is generated, retries if the stream is cut off, and shows an error.
//
//   npm install && node chat.js --url http://127.0.0.1:8000

import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const { values: options } = parseArgs({
  options: {
    url: { type: "string", default: "http://127.0.0.1:8000" },
    key: { type: "string" },
    question: { type: "string", default: "What is 7 plus 5?" },
  },
});

const protos = fileURLToPath(new URL("../../protos", import.meta.url));
const definition = protoLoader.loadSync("quire/inference/v1/inference.proto", {
  includeDirs: [protos],
  // Enums by name; 64-bit numbers as strings; `event` names the field of the oneof that is set.
  enums: String,
  longs: String,
  oneofs: true,
  defaults: true,
});
const { InferenceService } = grpc.loadPackageDefinition(definition).quire.inference.v1;

// Retries calls that fail before their first message, as docs/grpc.md explains.
const serviceConfig = {
  methodConfig: [
    {
      name: [{ service: "quire.inference.v1.InferenceService" }],
      waitForReady: true,
      retryPolicy: {
        maxAttempts: 4,
        initialBackoff: "0.2s",
        maxBackoff: "5s",
        backoffMultiplier: 2,
        retryableStatusCodes: ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
      },
    },
  ],
};
const { hostname, port } = new URL(options.url);
const client = new InferenceService(`${hostname}:${port || 80}`, grpc.credentials.createInsecure(), {
  "grpc.service_config": JSON.stringify(serviceConfig),
  "grpc.keepalive_time_ms": 30_000,
  "grpc.keepalive_timeout_ms": 10_000,
});

function metadata() {
  const headers = new grpc.Metadata();
  if (options.key) headers.set("authorization", `Bearer ${options.key}`);
  return headers;
}

// The deadline covers the whole answer. The scheduler frees the request's memory when it passes.
const deadline = () => ({ deadline: Date.now() + 120_000 });

function listModels() {
  return new Promise((resolve, reject) => {
    client.listModels({}, metadata(), deadline(), (error, response) => (error ? reject(error) : resolve(response)));
  });
}

// If a router dies during a stream, this library reports the reset stream as INTERNAL.
function wasCut(error) {
  const { INTERNAL, UNAVAILABLE } = grpc.status;
  return error.code === UNAVAILABLE || (error.code === INTERNAL && error.details.includes("RST_STREAM"));
}

// Passes the pieces of the answer's text to `write`. Returns its usage.
async function ask(model, question, write) {
  const stream = client.chat(
    {
      model,
      messages: [{ role: "user", content: question }],
      options: { sampling: { temperature: 0 }, stop: { maxTokens: 64 } },
    },
    metadata(),
    deadline(),
  );
  let usage;
  for await (const response of stream) {
    if (response.event === "delta") write(response.delta.text);
    else usage = response.final.usage;
  }
  // Every complete answer ends with a message that has the usage.
  if (!usage) throw new Error("the answer ended without its last message");
  return usage;
}

// Prints the answer. The library does not retry a stream after its first message, so this function does. At temperature
// 0 or with a seed, a retry generates the same text; the function skips the part that is already printed.
async function chat(model, question) {
  let printed = 0;
  for (let attempt = 1; ; attempt++) {
    let received = 0;
    const write = (text) => {
      process.stdout.write(text.slice(Math.max(0, printed - received)));
      received += text.length;
      printed = Math.max(printed, received);
    };
    try {
      const usage = await ask(model, question, write);
      console.log(`\n${usage.completionTokens} tokens`);
      return;
    } catch (error) {
      if (attempt === 4 || !wasCut(error)) throw error;
      console.error(`${error.message}; asking again`);
      await new Promise((resolve) => setTimeout(resolve, 100 * 2 ** attempt));
    }
  }
}

async function fail() {
  try {
    for await (const _ of client.chat({ model: "gpt-none" }, metadata(), deadline()));
  } catch (error) {
    // OpenAI's error object, as JSON. Errors of the library itself, as for a lost connection, have none.
    const [body] = error.metadata.get("quire-error");
    console.log(`${grpc.status[error.code]}: ${body ? JSON.parse(body).error.message : error.details}`);
  }
}

const { models } = await listModels();
console.log("models:", models.map((model) => model.name).join(", "));
await chat(models[0].name, options.question);
await fail();
client.close();
