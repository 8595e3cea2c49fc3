"""The cancellation contract (docs/cancellation.md), line by line, over real sockets."""
