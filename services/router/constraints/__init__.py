"""Which tokens a request allows: its grammar, bad words, allowed tokens and thinking limit, checked."""
