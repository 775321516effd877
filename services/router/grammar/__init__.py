"""What an output must look like: JSON schemas, regular expressions and grammars, in the library's form."""
