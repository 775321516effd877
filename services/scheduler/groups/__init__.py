"""The worker groups: the stream to each worker, the loop that keeps its plans in flight, and what the groups share."""
