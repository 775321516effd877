// A program with Anthropic's SDK for JavaScript: a tool runner, which first tries a thread, and a thread that may not
// continue unthreaded.
'use strict'

const Anthropic = require('@anthropic-ai/sdk')

const weather = {
  type: 'custom',
  name: 'weather',
  description: 'Tells the weather.',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  parse: (input) => input,
  run: async ({ city }) => `It rains in ${city}.`
}

async function main (url, model) {
  const client = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 })
  const turns = []
  const runner = client.beta.messages.toolRunner({
    model,
    max_tokens: 200,
    max_iterations: 2,
    temperature: 0,
    messages: [{ role: 'user', content: 'What is the weather in Bonn?' }],
    tools: [weather],
    tool_choice: { type: 'any', disable_parallel_tool_use: true }
  })
  for await (const { stop_reason: reason, usage } of runner) {
    turns.push([reason, usage.input_tokens + (usage.cache_read_input_tokens ?? 0)])
  }
  const refused = await client.beta.messages
    .thread({ model, max_tokens: 16 })
    .send({ role: 'user', content: 'Hi' })
    .then(() => null, (error) => [error.constructor.name, error.status])
  const models = []
  for await (const found of client.models.list()) models.push(found.id)
  console.log(JSON.stringify({ turns, refused, models }))
}

main(...process.argv.slice(2))
