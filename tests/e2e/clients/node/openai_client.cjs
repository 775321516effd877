// A program with OpenAI's own library for JavaScript. Its output is that of the programs in Python.
'use strict'

const OpenAI = require('openai')

const QUESTION = [{ role: 'user', content: 'What is 2 plus 3?' }]
const VERDICT = {
  type: 'object',
  properties: { verdict: { type: 'string', enum: ['yes', 'no'] } },
  required: ['verdict'],
  additionalProperties: false
}

async function part (client, model, name) {
  const request = { model, messages: QUESTION, temperature: 0 }
  switch (name) {
    case 'chat': {
      const { choices, usage } = await client.chat.completions.create(request)
      return { text: choices[0].message.content, tokens: usage.total_tokens }
    }
    case 'stream': {
      const pieces = []
      const stream = client.responses.stream({ model, input: QUESTION, temperature: 0 })
      stream.on('response.output_text.delta', ({ delta }) => pieces.push(delta))
      const { output_text: text } = await stream.finalResponse()
      if (text !== pieces.join('')) throw new Error(`${text} is not ${pieces}`)
      return { pieces }
    }
    case 'error':
      return client.chat.completions.create({ ...request, top_p: 7 }).then(
        () => null,
        (error) => ({ status: error.status, param: error.param })
      )
    case 'structured': {
      const results = []
      const judge = {
        name: 'judge',
        description: 'Judges.',
        parameters: VERDICT,
        parse: JSON.parse,
        function: (given) => results.push(given)
      }
      const runner = client.chat.completions.runTools({
        ...request,
        stream: true,
        tools: [{ type: 'function', function: judge }],
        tool_choice: { type: 'function', function: { name: 'judge' } }
      })
      const call = await runner.finalFunctionToolCall()
      return { name: call.name, ...results[0] }
    }
  }
}

async function main (url, model, ...parts) {
  const client = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 })
  const printed = {}
  for (const one of parts) printed[one] = await part(client, model, one)
  console.log(JSON.stringify(printed))
}

main(...process.argv.slice(2))
