"""Sampling on the device: a fixed number of launches per step, no sort, and no copy to the host in between.

Every row is spread over programs of TILE tokens each, so that even one row of a large vocabulary uses many programs. A
tile's results go to scratch memory, and the next launch reduces them. Launches of a step, in order (those that no row
needs are left out):

    shape      penalties, bias, grammar; the greatest logit
    pivots     how many tokens, and how much probability, lie within each of 32 fixed distances of the greatest logit
    brackets   for top-k and for top-p, the two pivots between which the cut lies
    collect    the tokens between these two pivots
    threshold  the exact cut
    draw       Gumbel-max over the tokens that the cuts keep; at temperature 0, the greatest logit
    finish     the row's token; the slot's last token and token counts
    top_*      log probabilities of the sampled token and of the likeliest tokens
"""
