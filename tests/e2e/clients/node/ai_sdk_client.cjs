// A program with Vercel's AI SDK, for which the server is an OpenAI-compatible provider. Its output is that of the
// programs in Python.
'use strict'

const { createOpenAICompatible } = require('@ai-sdk/openai-compatible')
const { generateText, jsonSchema, streamText, tool } = require('ai')

const QUESTION = 'What is 2 plus 3?'
const VERDICT = {
  type: 'object',
  properties: { verdict: { type: 'string', enum: ['yes', 'no'] } },
  required: ['verdict'],
  additionalProperties: false
}

async function part (model, name) {
  const options = { model, prompt: QUESTION, temperature: 0, maxRetries: 0 }
  switch (name) {
    case 'chat': {
      const { text, usage } = await generateText(options)
      return { text, tokens: usage.totalTokens }
    }
    case 'stream': {
      const pieces = []
      for await (const piece of streamText(options).textStream) pieces.push(piece)
      return { pieces }
    }
    case 'error':
      return generateText({ ...options, topP: 7 }).then(
        () => null,
        (error) => ({ status: error.statusCode, param: JSON.parse(error.responseBody).error.param })
      )
    case 'structured': {
      const judge = tool({ description: 'Judges.', inputSchema: jsonSchema(VERDICT) })
      const { toolCalls } = await generateText({
        ...options,
        tools: { judge },
        toolChoice: { type: 'tool', toolName: 'judge' }
      })
      return { name: toolCalls[0].toolName, ...toolCalls[0].input }
    }
  }
}

async function main (url, name, ...parts) {
  const provider = createOpenAICompatible({ name: 'quire', baseURL: url, includeUsage: true })
  const printed = {}
  for (const one of parts) printed[one] = await part(provider(name), one)
  console.log(JSON.stringify(printed))
}

main(...process.argv.slice(2))
