"""How models write tool calls and reasoning: a file per form, each a state machine that reads text as it comes."""
