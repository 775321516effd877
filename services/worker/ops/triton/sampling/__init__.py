"""Drawing tokens on the device: a fixed number of launches per step, no sort, nothing read back.

Every row is spread over programs of TILE tokens each, so that one row of a large vocabulary occupies the device too;
what a tile finds goes to scratch, and the next launch reduces it. The order of a step's launches, of which those that
no row of the step needs are left out:

    shape      penalties, bias, grammar; the greatest logit
    pivots     how many tokens, and how much probability, lie above each of 32 fixed distances from the greatest
    brackets   between which two of them top-k and top-p cut
    collect    the tokens there
    threshold  exactly where
    draw       Gumbel-max over what is left, or the greatest
    finish     the row's token; the slot's last token and counts
    top_*      log probabilities of the token and of the likeliest
"""
